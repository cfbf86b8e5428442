// EndpointCounters: packets that arrived and belong to no connection.
#pragma once
#include <cstdint>

namespace gradwire::ltp {

struct EndpointCounters {
  std::uint64_t malformed = 0, wrong_version = 0, authentication_failed = 0;
  std::uint64_t bad_cookie = 0, stray = 0, resets_sent = 0, retries_sent = 0;
  std::uint64_t challenges_sent = 0, moves = 0;
};

}  // namespace gradwire::ltp
