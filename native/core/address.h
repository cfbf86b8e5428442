// Address: IP address and port of a socket. IPv4 is stored as a v4-mapped IPv6 address.
#pragma once
#include <sys/socket.h>

#include <array>
#include <compare>
#include <cstdint>
#include <string>

namespace gradwire {

struct Address {
  std::array<std::uint8_t, 16> ip{};
  std::uint16_t port = 0;
  std::uint32_t scope = 0;  // interface index of a link-local address
  friend auto operator<=>(const Address&, const Address&) = default;
};

bool is_v4(const Address& address);
// "10.0.0.1", "::1", "fe80::1%eth0"; throws std::invalid_argument.
Address parse_address(const std::string& host, std::uint16_t port);
std::string format_address(const Address& address);

// Writes the kernel's form for a socket of `family` and returns its length.
socklen_t to_kernel(const Address& address, int family, sockaddr_storage& out);
// An address of neither IPv4 nor IPv6 (a local socket's) becomes the empty Address.
Address from_kernel(const sockaddr_storage& in);

}  // namespace gradwire
