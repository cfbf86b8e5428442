#include "emulator/launch.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace gradwire::emulator {
namespace {

volatile sig_atomic_t child = 0;
volatile sig_atomic_t abandoned = 0;

void on_signal(int signal) {
  if (signal == SIGHUP) abandoned = 1;  // our parent died
  if (child > 0) kill(child, signal == SIGHUP ? SIGKILL : signal);
}

int refuse(const char* what, const char* name) {
  std::fprintf(stderr, "gradwire lab: %s %s: %s\n", what, name, std::strerror(errno));
  return errno == ENOENT ? 127 : 126;
}

bool enter(const char* path, int kind) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool done = setns(fd, kind) == 0;
  close(fd);
  return done;
}

// Makes names of the lab's hosts resolve inside it. Only a convenience, so errors are ignored.
void show_hosts(const char* path) {
  if (unshare(CLONE_NEWNS) != 0) return;
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return;
  mount(path, "/etc/hosts", nullptr, MS_BIND, nullptr);
}

std::vector<pid_t> own_children() {
  std::vector<pid_t> found;
  std::ifstream list("/proc/thread-self/children");
  for (pid_t pid; list >> pid;) found.push_back(pid);
  return found;
}

// This process is the subreaper, so orphaned descendants become its children; kill until there is none.
void end_leftovers() {
  for (std::vector<pid_t> left = own_children(); !left.empty(); left = own_children()) {
    for (pid_t pid : left) kill(pid, SIGKILL);
    if (waitpid(-1, nullptr, 0) < 0 && errno == ECHILD) return;
  }
}

int wait_for_command() {
  int status = 0;
  while (true) {
    const pid_t pid = waitpid(-1, &status, 0);
    if (pid == child) break;
    if (pid < 0 && errno != EINTR) return 126;
  }
  child = 0;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

int launch(int count, char** words) {
  if (count < 5 || std::strcmp(words[3], "--") != 0) {
    std::fprintf(stderr, "usage: launch NETWORK USER|- HOSTS|- -- COMMAND...\n");
    return 2;
  }
  // The parent's own pid from the environment: if it has died already, getppid() returns another process.
  const char* parent_text = std::getenv("GRADWIRE_LAB_PID");
  const pid_t parent = parent_text ? static_cast<pid_t>(std::strtol(parent_text, nullptr, 10)) : getppid();
  struct sigaction action{};
  action.sa_handler = on_signal;
  for (int signal : {SIGTERM, SIGINT, SIGHUP}) sigaction(signal, &action, nullptr);
  prctl(PR_SET_PDEATHSIG, SIGHUP);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  if (getppid() != parent) return 126;  // it died before PR_SET_PDEATHSIG
  const auto given = [](const char* word) { return std::strcmp(word, "-") != 0; };
  if (given(words[1]) && !enter(words[1], CLONE_NEWUSER)) return refuse("cannot enter the user namespace", words[1]);
  if (given(words[0]) && !enter(words[0], CLONE_NEWNET)) return refuse("cannot enter the network", words[0]);
  if (given(words[2])) show_hosts(words[2]);
  prctl(PR_SET_PDEATHSIG, SIGHUP);  // entering a user namespace clears it

  const pid_t pid = fork();
  if (pid < 0) return refuse("cannot start", words[4]);
  if (pid == 0) {
    struct sigaction plain{};
    plain.sa_handler = SIG_DFL;
    for (int signal : {SIGTERM, SIGINT, SIGHUP}) sigaction(signal, &plain, nullptr);
    execvp(words[4], words + 4);
    _exit(refuse("cannot run", words[4]));
  }
  child = pid;
  if (abandoned) kill(pid, SIGKILL);
  const int code = wait_for_command();
  end_leftovers();
  return code;
}

}  // namespace gradwire::emulator
