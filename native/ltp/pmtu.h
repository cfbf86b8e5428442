// Pmtu: the largest datagram that the path carries: found by probing (DPLPMTUD, RFC 8899), reduced when it stops
// arriving, and probed again from time to time.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "core/time.h"
#include "ltp/packet.h"

namespace gradwire::ltp {

class Pmtu {
 public:
  explicit Pmtu(std::size_t largest) {
    while (high_ > 0 && kSizes[high_ - 1] > largest) --high_;
    limit_ = high_;
  }
  std::size_t current() const { return low_ ? kSizes[low_ - 1] : kBaseDatagram; }
  // The size to probe now; 0 for none.
  std::size_t due(Time now) {
    if (outstanding_) return 0;
    if (suspicious_) return current();
    if (now < wait_until_) return 0;
    if (low_ >= high_) high_ = limit_;  // the raise timer
    return low_ >= high_ ? 0 : kSizes[middle() - 1];
  }
  Time deadline() const {
    if (outstanding_) return kNever;
    return suspicious_ ? 0 : low_ >= limit_ ? kNever : wait_until_;
  }
  void on_probe_sent() {
    outstanding_ = true;
    confirming_ = suspicious_;
  }
  void on_probe_acked(Time now, std::size_t size) {
    outstanding_ = false;
    tries_ = 0;
    if (confirming_) return trust();
    for (std::size_t i = low_; i < high_; ++i)
      if (kSizes[i] == size) low_ = i + 1;
    wait_when_found(now);
  }
  // True when this loss reduced the size.
  bool on_probe_lost(Time now) {
    outstanding_ = false;
    if (++tries_ < kTries) return false;
    tries_ = 0;
    if (confirming_) return on_silence(now);
    if (low_ < high_) high_ = middle() - 1;
    wait_when_found(now);
    return false;
  }
  // Packets other than probes.
  void on_acked(std::size_t size, Time sent) {
    if (size <= kBaseDatagram) return;
    newest_acked_ = std::max(newest_acked_, sent);
    trust();
  }
  // Packets above the base size are lost, even if smaller ones arrive. Data without a buffer is not acknowledged
  // either, so a probe of the present size decides.
  void on_lost(std::size_t size, Time sent) {
    if (size <= kBaseDatagram || sent <= newest_acked_ || ++lost_ < kBlackHole || !low_ || suspicious_) return;
    suspicious_ = true;
    tries_ = 0;
  }
  // Full-size packets are lost: fall back to the base size and search again later.
  bool on_silence(Time now) {
    trust();
    if (!low_) return false;
    low_ = 0;
    high_ = limit_;
    tries_ = 0;
    wait_until_ = now + kSecond;
    return true;
  }

 private:
  // UDP payloads of common links: IPv6's minimum, tunnels, Ethernet under IPv6 and IPv4, jumbo frames.
  static constexpr std::array<std::size_t, 9> kSizes{1232, 1372, 1412, 1452, 1472, 4052, 8932, 8952, 8972};
  static constexpr int kTries = 3;
  // Losses of packets above the base since one was acknowledged. At 30 % random loss, ten in a row begin once in
  // 170,000 packets, and a false alarm costs a probe; ten packets are one or two round trips of the smallest window.
  static constexpr int kBlackHole = 10;
  static constexpr Time kRaise = 600 * kSecond;  // PMTU_RAISE_TIMER, RFC 8899 section 5.1.1

  std::size_t middle() const { return (low_ + high_ + 1) / 2; }
  void trust() {
    lost_ = 0;
    suspicious_ = confirming_ = false;
  }
  void wait_when_found(Time now) {
    if (low_ >= high_) wait_until_ = now + kRaise;
  }

  // kSizes[low_ - 1] passes (0: only the base), kSizes[high_] does not.
  std::size_t low_ = 0, high_ = kSizes.size(), limit_;
  int tries_ = 0, lost_ = 0;
  bool outstanding_ = false;
  bool suspicious_ = false, confirming_ = false;  // large packets are lost; the probe in flight is to confirm it
  Time wait_until_ = 0, newest_acked_ = 0;
};

}  // namespace gradwire::ltp
