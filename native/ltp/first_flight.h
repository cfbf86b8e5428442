// FirstFlight: the delivery rate of packets that were all sent before the first ACK, as in a transfer that fits the
// window. Such packets are application-limited, and their ordinary rate samples contain a whole round trip. Here the
// rate is taken between two arrivals by the receiver's clock (ACKs carry it, so the reverse path does not matter), and
// compared with the rate at which the same packets were sent.
#pragma once
#include <algorithm>

#include "core/time.h"
#include "ltp/sent.h"

namespace gradwire::ltp {

class FirstFlight {
 public:
  struct Sample {
    double rate = 0;            // bytes per second; 0 when not measurable
    bool path_limited = false;  // delivered more slowly than sent: the rate is the path's, not the application's
  };

  // Nothing is in flight and `delivered` bytes were delivered so far.
  void restart(std::uint64_t delivered) {
    start_ = delivered;
    acked_ = false;
  }
  // After an ACK whose newest packet is `newest`, which arrived at `arrived_us` by the receiver's clock.
  Sample on_ack(const SentPacket& newest, std::uint64_t delivered, std::uint32_t arrived_us) {
    if (newest.delivered != start_) return {};
    if (!acked_) {
      acked_ = true;
      arrived_us_ = arrived_us;
      sent_ = newest.sent;
      delivered_ = delivered;
      return {};
    }
    // The clock's 32 bits wrap; the difference of two readings stays correct.
    Time arriving = Time{static_cast<std::int32_t>(arrived_us - arrived_us_)} * kMicrosecond;
    Time sending = newest.sent - sent_;
    std::uint64_t bytes = delivered - delivered_;
    if (bytes < kLeastBytes || arriving < kLeastTime) return {};
    return {static_cast<double>(bytes) * kSecond / static_cast<double>(std::max(sending, arriving)),
            arriving > sending + sending / 4 + kBunching};
  }

 private:
  static constexpr std::uint64_t kLeastBytes = 16 * 1024;  // a few control frames do not show a rate
  static constexpr Time kBunching = 2 * kMillisecond;      // a burst of the pacer (1 ms) and a receiver scheduled late
  static constexpr Time kLeastTime = 5 * kBunching;        // so that bunching is at most a fifth of the interval

  std::uint64_t start_ = 0, delivered_ = 0;
  bool acked_ = false;
  std::uint32_t arrived_us_ = 0;
  Time sent_ = 0;
};

}  // namespace gradwire::ltp
