// What a user may set, with the reasons for the defaults. Checked at the edge (Python); trusted here.
#pragma once
#include <cstdint>

#include "ltp/congestion.h"
#include "ltp/time.h"

namespace gradwire::ltp {

struct Settings {
  bool encrypt = true;  // false: authenticate only; a connection encrypts when either side asks for it
  CongestionKind congestion = CongestionKind::bbr;
  // Bytes of transfers a peer may send before a receive is posted for them.
  std::uint32_t credit = 4u << 20;
  // Jumbo Ethernet less IPv4 and UDP headers; probing finds what the path carries.
  std::uint16_t largest_datagram = 8972;
  Time keepalive = kSecond;
  // Longer than the 5 s pause that must be survived, with room for three lost keepalives.
  Time dead_after = 15 * kSecond;
  Time connect_timeout = 30 * kSecond;
  // AES-GCM keeps its margin up to 2^24.5 packets of our size under one key (RFC 9001, appendix B); we stay well under.
  std::uint64_t key_update_after = std::uint64_t{1} << 22;
  // Early Close: SYSTEMS' LT and deadline.
  Time deadline_slack = 30 * kMillisecond;
  Time first_deadline = 10 * kSecond;  // while nobody knows the path's rate
  // The share of its tolerance below which no deadline closes a transfer that does not say otherwise, in parts per million.
  // Half: to leave out more than is delivered costs more steps of training than the wait it saves.
  std::uint32_t least = 500'000;
};

}  // namespace gradwire::ltp
