// HostDevice: one emulated host: a new network namespace with one TUN device, owned by this process through two
// descriptors. Nothing has a name outside, so nothing can be left behind: the kernel removes the namespace with its
// last process and descriptor.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "emulator/packet.h"

namespace gradwire::emulator {

struct HostConfig {
  std::string name, address, congestion;  // address: IPv4 or IPv6; congestion may be "-": the kernel's default
  int prefix = 16, mtu = 1500;
  bool default_route = false;              // also to addresses outside of the prefix
  std::vector<std::string> settings = {};  // "name=value" below /proc/sys/net/ipv4 of its namespace
};

struct HostDevice {
  int device = -1;   // the TUN device, non-blocking
  int network = -1;  // the namespace
  HostAddress address{};
  bool segmentation = false;  // the kernel hands over super-packets
};

constexpr const char* kInterface = "eth0";

// Without root: enters a user namespace first, in which this process may create network namespaces.
// Throws std::runtime_error with the reason. Returns true when a user namespace was needed.
bool gain_privileges();
HostDevice open_host(const HostConfig& config);
// Packets the kernel dropped because the device's ring was full: the emulator did not read fast enough.
uint64_t device_drops(const HostDevice& host);

}  // namespace gradwire::emulator
