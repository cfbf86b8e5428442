// Loop: moves packets between the TUN devices and the engine, and reads control lines from standard input.
#pragma once
#include <time.h>

#include <array>
#include <map>
#include <string>
#include <vector>

#include "emulator/drain_clock.h"
#include "emulator/engine.h"
#include "emulator/host_device.h"
#include "emulator/nat.h"

namespace gradwire::emulator {

// How late packets left the emulator, the time before it read them included: upper bounds in microseconds, the last bin
// is open.
constexpr std::array<int, 7> kLatenessBounds = {50, 100, 250, 500, 1000, 5000, 20000};

struct LoopCounters {
  uint64_t received = 0, sent = 0;  // super-packets
  uint64_t unroutable = 0;          // broadcast, multicast, unknown address
  uint64_t nat_drops = 0;           // without a mapping, or of a kind that no NAT translates
  uint64_t write_errors = 0, wakeups = 0;
  std::array<uint64_t, kLatenessBounds.size() + 1> lateness{};
  Nanoseconds lateness_max = 0;
  double lateness_sum = 0;
};

Nanoseconds monotonic_now();

class Loop {
 public:
  Loop(Engine& engine, std::vector<HostDevice> hosts);
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Runs until `on_line` returns false or standard input ends (the parent has ended).
  using OnLine = std::function<bool(const std::string&)>;
  void run(const OnLine& on_line);
  // Puts a host behind a NAT: its own address is `config.inside`, the others reach it at `config.outside`.
  void translate(uint32_t host, NatConfig config);
  // False for a host without a NAT.
  bool forget_mappings(uint32_t host);
  const LoopCounters& counters() const { return counters_; }
  const std::vector<HostDevice>& hosts() const { return hosts_; }

 private:
  void wait(Nanoseconds until);
  // Finds which devices and whether control lines are ready; returns how many, or -1 after a signal.
  long poll_ready(const timespec* timeout);
  void sleep_until_ready(Nanoseconds until);
  Nanoseconds processor_delay();
  bool read_control(const OnLine& on_line);
  void read_device(uint32_t host);
  void deliver(PacketPtr packet);

  Engine& engine_;
  std::vector<HostDevice> hosts_;
  std::map<HostAddress, uint16_t> by_address_;
  std::map<uint32_t, Nat> nats_;
  LoopCounters counters_;
  DrainClock drains_;
  std::vector<uint8_t> buffer_;
  std::string control_;
  std::vector<uint32_t> ready_;
  bool control_ready_ = false;
  uint64_t moved_ = 0;  // packets in the current window
  Nanoseconds window_end_ = 0;
  bool busy_ = false;
  int poll_ = -1;
  int schedule_ = -1;  // the kernel's count of how long this thread has waited for a processor
  Nanoseconds delayed_ = 0;
};

}  // namespace gradwire::emulator
