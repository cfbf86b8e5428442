// Acks: the receiver's half of acknowledgement: which packets arrived, and when to send an ACK.
#pragma once
#include <algorithm>
#include <array>

#include "core/time.h"
#include "ltp/frame.h"
#include "ltp/replay_window.h"

namespace gradwire::ltp {

class Acks {
 public:
  // An ACK at least every sixteen packets keeps the sender's clock fine-grained; each costs both sides a wake-up.
  static constexpr int kEvery = 16;
  // An ACK waits for a quarter of a round trip, within these bounds: with a longer delay, short round trips would
  // consist of waiting.
  static constexpr Time kShortest = 250 * kMicrosecond;
  static constexpr Time kLongest = kMillisecond;
  // Each arrival is reported in this many ACKs, so that a lost ACK costs nothing.
  static constexpr std::size_t kRepeats = 8;

  void on_packet(Time now, std::uint64_t number, bool eliciting, Time rtt) {
    if (number + 1 >= arrived_.end()) newest_at_ = now;
    bool gap = number > arrived_.end();
    if (!arrived_.insert(number)) return;
    lowest_new_ = std::min(lowest_new_, number);
    if (!eliciting) return;
    if (pending_++ == 0) deadline_ = now + std::clamp(rtt / 4, kShortest, kLongest);
    // The first packet after a gap reports loss at once.
    if (gap && pending_ > 1) deadline_ = now;
    if (pending_ >= kEvery) deadline_ = now;
  }
  Time deadline() const { return deadline_; }
  bool due(Time now) const { return deadline_ <= now; }

  void fill(Time now, AckFrame& ack) {
    floors_[turn_++ % kRepeats] = std::min(lowest_new_, arrived_.end() - 1);
    std::uint64_t lowest = *std::min_element(floors_.begin(), floors_.end());
    std::uint64_t last = (arrived_.end() - 1) / 64;
    std::uint64_t first = std::max(lowest / 64, last + 1 - std::min<std::uint64_t>(kAckWords, last + 1));
    ack.base = first * 64;
    ack.words = static_cast<std::uint8_t>(last - first + 1);
    for (std::uint64_t w = first; w <= last; ++w) ack.bits[w - first] = arrived_.around(w * 64);
    ack.delay_us = static_cast<std::uint32_t>(std::clamp<Time>((now - newest_at_) / kMicrosecond, 0, 0xffffffff));
    ack.stamp_us = static_cast<std::uint32_t>(now / kMicrosecond);
    pending_ = 0;
    deadline_ = kNever;
    lowest_new_ = ~std::uint64_t{0};
  }
  bool any() const { return arrived_.end() > 0; }

 private:
  ReplayWindow<8192> arrived_;
  std::array<std::uint64_t, kRepeats> floors_ = make_floors();
  std::size_t turn_ = 0;
  std::uint64_t lowest_new_ = ~std::uint64_t{0};
  int pending_ = 0;
  Time deadline_ = kNever;
  Time newest_at_ = 0;

  static constexpr std::array<std::uint64_t, kRepeats> make_floors() {
    std::array<std::uint64_t, kRepeats> floors{};
    for (auto& floor : floors) floor = ~std::uint64_t{0};
    return floors;
  }
};

}  // namespace gradwire::ltp
