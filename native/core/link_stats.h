// LinkStats: counters and estimates of one connection, read by `sense`.
#pragma once
#include <cstdint>

#include "core/time.h"

namespace gradwire {

struct LinkCounters {
  std::uint64_t packets_sent = 0, bytes_sent = 0;
  std::uint64_t packets_received = 0, bytes_received = 0;
  std::uint64_t packets_acked = 0, bytes_acked = 0;
  std::uint64_t packets_lost = 0, spurious_losses = 0, retransmitted_bytes = 0;
  std::uint64_t duplicate_data = 0;   // grains that arrived twice
  std::uint64_t late_data = 0;        // packets of a transfer that was already closed
  std::uint64_t unexpected_data = 0;  // packets of a transfer that was not yet announced or not granted
  std::uint64_t authentication_failed = 0, replayed = 0, malformed = 0;
  std::uint64_t key_updates = 0, probe_timeouts = 0, mtu_fallbacks = 0;
};

struct LinkStats {
  LinkCounters counters;
  Time srtt = 0, rtprop = 0, rtt_variation = 0;
  double bottleneck = 0;  // bytes per second; 0 until the path was full once
  double pacing_rate = 0, delivery_rate = 0;
  double loss = 0;  // smoothed fraction of packets lost
  // Bytes acknowledged in periods that carried data, and the length of those periods less one round trip each.
  std::uint64_t moved = 0;
  Time moving = 0;
  std::uint64_t in_flight = 0, window = 0;
  std::uint16_t datagram = 0;
};

}  // namespace gradwire
