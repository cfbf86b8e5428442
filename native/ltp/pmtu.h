// The largest datagram the path carries: found by probing (DPLPMTUD, RFC 8899), given up when it stops arriving.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "ltp/packet.h"
#include "ltp/time.h"

namespace gradwire::ltp {

class Pmtu {
 public:
  explicit Pmtu(std::size_t largest) {
    while (high_ > 0 && kSizes[high_ - 1] > largest) --high_;
    limit_ = high_;
  }
  std::size_t current() const { return low_ ? kSizes[low_ - 1] : kBaseDatagram; }
  // The size to probe now; 0 for none.
  std::size_t due(Time now) const { return outstanding_ || low_ >= high_ || now < wait_until_ ? 0 : kSizes[middle() - 1]; }
  Time deadline() const { return outstanding_ || low_ >= high_ ? kNever : wait_until_; }
  void on_probe_sent() { outstanding_ = true; }
  void on_probe_acked(std::size_t size) {
    outstanding_ = false;
    tries_ = 0;
    for (std::size_t i = low_; i < high_; ++i)
      if (kSizes[i] == size) low_ = i + 1;
  }
  void on_probe_lost() {
    outstanding_ = false;
    if (++tries_ < kTries) return;
    high_ = middle() - 1;
    tries_ = 0;
  }
  // Full-size packets vanish: fall back to what passes everywhere and look again later.
  bool on_silence(Time now) {
    if (!low_) return false;
    low_ = 0;
    high_ = limit_;
    tries_ = 0;
    wait_until_ = now + kSecond;
    return true;
  }

 private:
  // UDP payloads of the links one meets: IPv6's least, tunnels, Ethernet under IPv6 and IPv4, jumbo frames.
  static constexpr std::array<std::size_t, 9> kSizes{1232, 1372, 1412, 1452, 1472, 4052, 8932, 8952, 8972};
  static constexpr int kTries = 3;

  std::size_t middle() const { return (low_ + high_ + 1) / 2; }

  // kSizes[low_ - 1] passes (0: only the base), kSizes[high_] does not.
  std::size_t low_ = 0, high_ = kSizes.size(), limit_;
  int tries_ = 0;
  bool outstanding_ = false;
  Time wait_until_ = 0;
};

}  // namespace gradwire::ltp
