// Runs one command in an emulated host's namespace and supervises it: the command and all its descendants end with the
// supervisor, and the supervisor ends with its parent, even by kill -9.
#pragma once

namespace gradwire::emulator {

// launch NETWORK|- USER|- HOSTS|- -- COMMAND...   where NETWORK and USER are paths of namespaces,
// HOSTS is shown to it as /etc/hosts. Returns the exit code.
int launch(int count, char** words);

}  // namespace gradwire::emulator
