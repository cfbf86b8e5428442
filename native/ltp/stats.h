// Counters and estimates of one connection: what `sense` reads. Every ACK updates them.
#pragma once
#include <cstdint>

#include "ltp/time.h"

namespace gradwire::ltp {

struct Counters {
  std::uint64_t packets_sent = 0, bytes_sent = 0;
  std::uint64_t packets_received = 0, bytes_received = 0;
  std::uint64_t packets_acked = 0, bytes_acked = 0;
  std::uint64_t packets_lost = 0, spurious_losses = 0, retransmitted_bytes = 0;
  std::uint64_t duplicate_data = 0;     // grains that came twice
  std::uint64_t late_data = 0;          // packets for a transfer already closed
  std::uint64_t unexpected_data = 0;    // packets for a transfer not yet announced or not granted
  std::uint64_t authentication_failed = 0, replayed = 0, malformed = 0;
  std::uint64_t key_updates = 0, probe_timeouts = 0, mtu_fallbacks = 0;
};

struct LinkStats {
  Counters counters;
  Time srtt = 0, rtprop = 0, rtt_variation = 0;
  double bottleneck = 0;  // bytes per second; 0 until the pipe was full once
  double pacing_rate = 0, delivery_rate = 0;
  double loss = 0;  // smoothed share of packets lost
  // Bytes acknowledged in stretches that carried data, and how long those took, a round trip each taken off.
  std::uint64_t moved = 0;
  Time moving = 0;
  std::uint64_t in_flight = 0, window = 0;
  std::uint16_t datagram = 0;
};

// What arrived and belongs to no connection.
struct EndpointCounters {
  std::uint64_t malformed = 0, wrong_version = 0, authentication_failed = 0;
  std::uint64_t bad_cookie = 0, stray = 0, resets_sent = 0, retries_sent = 0;
};

}  // namespace gradwire::ltp
