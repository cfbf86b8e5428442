// The emulator's plain-text commands, one a line, sent by gradwire.lab over standard input and output.
//
//   host NAME ADDRESS PREFIX MTU CONGESTION [setting=value...], settings below /proc/sys/net/ipv4
//   nat HOST full-cone|port-restricted|symmetric PUBLIC_ADDRESS TIMEOUT_NS SEED [PORT...], PORTs are forwarded
//   link SEED OVERHEAD key=value...                   (numbered in order, from 0)
//   trace LINK PERIOD_NS AT_NS:RATE...             route SOURCE TARGET LINK...
//   change AT_NS LINK key=value...                 start       -> "ok user|root FD FD ..." (namespaces, one a host)
//   begin    restart traces and schedule           set LINK key=value...
//   stats    -> one line of JSON                   stop
//   forget HOST    the mappings of its NAT
// Keys are those of LinkValues; rates in bytes per second, times in nanoseconds, "inf" for no limit.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "emulator/engine.h"
#include "emulator/host_device.h"
#include "emulator/loop.h"

namespace gradwire::emulator {

// What the lines before `start` describe. `apply` throws std::runtime_error on a line it does not understand.
class Description {
 public:
  void apply(const std::string& line);
  const std::vector<HostConfig>& hosts() const { return hosts_; }
  const std::map<uint32_t, NatConfig>& nats() const { return nats_; }
  std::unique_ptr<Engine> build() const;

 private:
  struct LinkLine {
    LinkValues values;
    uint64_t seed;
    uint32_t overhead;
  };
  struct TraceLine {
    uint32_t link;
    Nanoseconds period;
    std::vector<RateStep> steps;
  };
  struct RouteLine {
    uint32_t source, target;
    std::vector<uint32_t> links;
  };
  std::vector<HostConfig> hosts_;
  std::map<uint32_t, NatConfig> nats_;
  std::vector<LinkLine> links_;
  std::vector<TraceLine> traces_;
  std::vector<RouteLine> routes_;
  std::vector<Change> changes_;
};

// "rate=125000 loss=0.01" as a function that sets those values.
std::function<void(LinkValues&)> parse_values(const std::vector<std::string>& words);
std::vector<std::string> split(const std::string& line);
std::string stats_json(const Engine& engine, const Loop& loop, bool realtime);

}  // namespace gradwire::emulator
