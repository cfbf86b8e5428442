// Runs one command in an emulated host's namespace and stays as its keeper: the command and everything it ever
// started end with the keeper, and the keeper ends with whoever started it, even by kill -9.
#pragma once

namespace gradwire::emulator {

// launch NETWORK|- USER|- HOSTS|- -- COMMAND...   where NETWORK and USER are paths of namespaces,
// HOSTS is shown to it as /etc/hosts. Returns the exit code.
int launch(int count, char** words);

}  // namespace gradwire::emulator
