// Settings: what a user may set, with the reasons for the defaults. Checked in Python; trusted here.
#pragma once
#include <cstdint>

#include "core/time.h"
#include "ltp/congestion.h"
#include "ltp/keys.h"

namespace gradwire::ltp {

struct Settings {
  bool encrypt = true;  // false: authenticate only; a connection encrypts when either side requires it
  CongestionKind congestion = CongestionKind::bbr;
  // Bytes of transfers that a peer may send before a receive is posted for them.
  std::uint32_t credit = 4u << 20;
  // Jumbo Ethernet without IPv4 and UDP headers; probing finds what the path carries.
  std::uint16_t largest_datagram = 8972;
  Time keepalive = kSecond;
  // Longer than the 5 s pause that a connection must survive, plus several lost keepalives.
  Time dead_after = 15 * kSecond;
  Time connect_timeout = 30 * kSecond;
  // Half of what one key may protect. At the limit itself, on either side, the connection fails.
  std::uint64_t key_update_after = kPacketsPerKey / 2;
  std::uint64_t key_limit = kPacketsPerKey;
  // Early Close: see early_close.h.
  Time deadline_slack = 30 * kMillisecond;
  Time first_deadline = 10 * kSecond;  // while the path's rate is unknown
  // Without a value in the request, a deadline never closes a transfer below this share of its tolerance, in parts per
  // million. Half: leaving out more than is delivered costs more steps of training than the wait it saves.
  std::uint32_t least = 500'000;
};

}  // namespace gradwire::ltp
