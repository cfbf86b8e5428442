// Interface: gives a host's namespace its address, IPv4 or IPv6, and its device an MTU and a ring. Called inside of the
// namespace; every function throws std::runtime_error with the reason.
#pragma once
#include <net/if.h>

#include <string>

#include "emulator/host_device.h"

namespace gradwire::emulator {

// Before the device is made.
void choose_family(const HostConfig& config);
void configure_interface(const HostConfig& config);
HostAddress parse_address(const std::string& text);

ifreq interface_request(const char* name);
bool write_file(const std::string& path, const std::string& text);
// Throws with the reason in errno.
[[noreturn]] void fail(const std::string& what);

}  // namespace gradwire::emulator
