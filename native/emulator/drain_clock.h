// DrainClock: estimates how long a packet has waited in its device before the emulator read it. No clock, no I/O.
//
// The kernel does not report when a packet arrived at a TUN device. It arrived after the device was last known to be
// empty: when a read found nothing, when a poll of all devices did not report it, or while the emulator slept until a
// device was ready. The time since then is the device's gap. Arrivals are assumed to be spread evenly over it, so that
// a gap counts as lateness for as many packets as it probably delayed, and not for all.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "emulator/packet.h"

namespace gradwire::emulator {

class DrainClock {
 public:
  DrainClock(size_t devices, Nanoseconds now) : empty_(devices, now) {}

  void found_empty(size_t device, Nanoseconds now) { empty_[device] = std::max(empty_[device], now); }
  // Of all devices only these were ready.
  void looked(Nanoseconds now, const std::vector<uint32_t>& ready) {
    kept_.clear();
    for (uint32_t device : ready) kept_.push_back(empty_[device]);
    woke(now, 0);
    for (size_t i = 0; i < ready.size(); ++i) empty_[ready[i]] = kept_[i];
  }
  // All devices were empty when the emulator went to sleep. The first packet made it ready to run, and `delay` later,
  // now, it runs.
  void woke(Nanoseconds now, Nanoseconds delay) {
    for (Nanoseconds& empty : empty_) empty = std::max(empty, now - delay);
  }
  Nanoseconds gap(size_t device, Nanoseconds now) const { return std::max<Nanoseconds>(0, now - empty_[device]); }
  Nanoseconds wait_of_next(size_t device, Nanoseconds now) {
    // Steps of the golden section fill the range evenly, however many there are; the same every time.
    constexpr double kGoldenSection = 0.6180339887498949;
    part_ += part_ < 1 - kGoldenSection ? kGoldenSection : kGoldenSection - 1;
    return static_cast<Nanoseconds>(static_cast<double>(gap(device, now)) * part_);
  }

 private:
  std::vector<Nanoseconds> empty_;  // when each device was last known to be empty
  std::vector<Nanoseconds> kept_;
  double part_ = 0;
};

}  // namespace gradwire::emulator
