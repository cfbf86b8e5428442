// gradwire-linkemu: `emulate` is the link emulator (commands in control.h), `launch` runs a command in a host.
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <stdexcept>
#include <string>

#include "emulator/control.h"
#include "emulator/launch.h"

namespace {

using namespace gradwire::emulator;

void print(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

// Packets must leave on time while the ranks use every core. Returns whether the kernel granted it.
bool raise_priority() {
  prctl(PR_SET_TIMERSLACK, 1000);
  mlockall(MCL_CURRENT);
  sched_param priority{};
  priority.sched_priority = 10;
  if (sched_setscheduler(0, SCHED_FIFO, &priority) == 0) return true;
  setpriority(PRIO_PROCESS, 0, -10);
  return false;
}

int emulate() {
  Description description;
  // Nothing is sent between "start" and our answer, so the stream's buffer holds nothing that the loop must read.
  for (std::string line; line != "start";) {
    if (!std::getline(std::cin, line)) return 0;
    if (line != "start") description.apply(line);
  }
  std::unique_ptr<Engine> engine = description.build();
  std::string ready = gain_privileges() ? "ok user" : "ok root";
  std::vector<HostDevice> hosts;
  for (const HostConfig& config : description.hosts()) {
    hosts.push_back(open_host(config));
    ready += " " + std::to_string(hosts.back().network);
  }
  Loop loop(*engine, std::move(hosts));
  for (const auto& [host, nat] : description.nats()) loop.translate(host, nat);
  const bool realtime = raise_priority();
  engine->begin(monotonic_now());
  print(ready);

  loop.run([&](const std::string& line) {
    try {
      const std::vector<std::string> words = split(line);
      if (line == "stop") return false;
      if (line == "stats") {
        print(stats_json(*engine, loop, realtime));
      } else if (line == "begin") {
        engine->begin(monotonic_now());
        print("ok");
      } else if (words.size() == 2 && words[0] == "forget" &&
                 loop.forget_mappings(static_cast<uint32_t>(std::stoul(words[1])))) {
        print("ok");
      } else if (words.size() > 2 && words[0] == "set" && std::stoul(words[1]) < engine->links()) {
        const auto link = static_cast<uint32_t>(std::stoul(words[1]));
        engine->set(monotonic_now(), link, parse_values({words.begin() + 2, words.end()}));
        print("ok");
      } else {
        print("error not understood: '" + line + "'");
      }
    } catch (const std::exception& error) {
      print(std::string("error ") + error.what());
    }
    return true;
  });
  return 0;
}

}  // namespace

int main(int count, char** words) {
  if (count > 1 && std::strcmp(words[1], "launch") == 0) return launch(count - 2, words + 2);
  if (count != 2 || std::strcmp(words[1], "emulate") != 0) {
    std::fprintf(stderr, "usage: gradwire-linkemu emulate | launch NETWORK USER|- HOSTS|- -- COMMAND...\n");
    return 2;
  }
  // The lab decides when to stop: a Ctrl-C for the ranks must not remove their network.
  std::signal(SIGINT, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  try {
    return emulate();
  } catch (const std::exception& error) {
    print(std::string("error ") + error.what());
    return 1;
  }
}
