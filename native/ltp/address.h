// Where a datagram comes from or goes to. Opaque to the protocol; IPv4 is kept as a v4-mapped IPv6 address.
#pragma once
#include <array>
#include <compare>
#include <cstdint>

namespace gradwire::ltp {

struct Address {
  std::array<std::uint8_t, 16> ip{};
  std::uint16_t port = 0;
  std::uint32_t scope = 0;  // interface of a link-local address
  friend auto operator<=>(const Address&, const Address&) = default;
};

}  // namespace gradwire::ltp
