// SentRing: every packet in flight, indexed by its number: a ring that grows by doubling, never per packet.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "core/time.h"
#include "ltp/control.h"

namespace gradwire::ltp {

enum class PacketState : std::uint8_t { untracked, in_flight, acked, lost };

struct SentPacket {
  Time sent = 0;
  // Delivery state when it was sent, for the rate sample (Cheng and Cardwell, "Delivery rate estimation").
  Time delivered_at = 0, first_sent = 0;
  std::uint64_t delivered = 0;
  std::uint64_t in_flight = 0;  // bytes, with its own, when it was sent
  TransferId transfer = 0;
  std::uint32_t first = 0;  // grains [first, first + count) of the transfer
  std::uint16_t count = 0, bytes = 0;
  PacketState state = PacketState::untracked;
  bool app_limited = false, mtu_probe = false;
  std::uint8_t generation = 0, controls = 0;
  std::array<Control, kControlsPerPacket> control{};
};

class SentRing {
 public:
  SentRing() : ring_(256) {}
  std::uint64_t begin() const { return begin_; }
  std::uint64_t end() const { return end_; }
  SentPacket& push() {
    if (end_ - begin_ == ring_.size()) grow();
    SentPacket& packet = at(end_++);
    packet.state = PacketState::untracked;
    packet.count = 0;
    packet.controls = 0;
    packet.mtu_probe = false;
    return packet;
  }
  void pop() { ++begin_; }
  bool holds(std::uint64_t number) const { return number >= begin_ && number < end_; }
  SentPacket& at(std::uint64_t number) { return ring_[number & (ring_.size() - 1)]; }

 private:
  void grow() {
    std::vector<SentPacket> larger(ring_.size() * 2);
    for (std::uint64_t n = begin_; n < end_; ++n) larger[n & (larger.size() - 1)] = at(n);
    ring_.swap(larger);
  }

  std::vector<SentPacket> ring_;
  std::uint64_t begin_ = 0, end_ = 0;
};

}  // namespace gradwire::ltp
