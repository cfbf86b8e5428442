// Link: one direction of one link: a drop-tail queue in bytes, a server, random loss, a delay line, reordering and
// duplication. No clock, no I/O.
//
// In:  offer(now, packet), change(now, values).  Out: poll(now, leave) passes on what has left the link, with `due`
// set. Each wire packet inside a super-packet is queued, served, dropped and counted on its own; order is kept, except
// for packets that are held back on purpose. Steps: 1 too big for the MTU -> dropped; 2 queue full -> the tail is
// dropped; 3 served at the rate; 4 lost at random on the wire (Gilbert-Elliott, then independent); 5 delayed; 6 at
// random delayed, so that later packets overtake; 7 at random sent twice, the copy right behind.
//
// A burst of losses ends with time as well as with packets: each full packet that the link could have served and did
// not is a step of the chain, too. Otherwise a burst would outlast any pause, and a single retransmission after seconds
// of silence would be in the same burst as the original. A link without a rate steps with its packets only.
#pragma once
#include <cstdint>
#include <deque>
#include <limits>

#include "emulator/packet.h"
#include "emulator/random.h"
#include "emulator/rate_curve.h"

namespace gradwire::emulator {

struct LinkValues {
  double rate = RateCurve::kUnlimited;  // bytes per second
  Nanoseconds delay = 0;
  // Correlated (Ornstein-Uhlenbeck) with this deviation: independent jitter kept in order would raise the mean delay.
  Nanoseconds jitter = 0, jitter_memory = 50'000'000;
  double loss = 0;
  double burst_enter = 0, burst_leave = 1, burst_loss = 1;  // Gilbert-Elliott, per wire packet or its time
  double reorder = 0;                                       // share of wire packets that are held back
  Nanoseconds reorder_by = 0;                               // for so long
  double duplicate = 0;                                     // share of wire packets that arrive twice
  double queue = std::numeric_limits<double>::infinity();   // bytes, the packet in service included
  uint32_t mtu = 65535;
};

struct LinkCounters {
  uint64_t offered = 0, offered_bytes = 0;      // wire packets and wire bytes that came to the link
  uint64_t delivered = 0, delivered_bytes = 0;  // ... that crossed it
  uint64_t queue_drops = 0, loss_drops = 0, mtu_drops = 0;
  uint64_t reordered = 0, duplicated = 0;  // of those delivered, the copies counted
  double queue_peak = 0;
};

class Link {
 public:
  Link(LinkValues values, uint64_t seed, uint32_t overhead);

  void offer(Nanoseconds now, PacketPtr packet);
  // When the packet in service will have left; kNever while idle.
  Nanoseconds next_departure() const { return departure_; }
  template <class Leave>
  void poll(Nanoseconds now, Leave&& leave) {
    while (departure_ <= now) {
      const Nanoseconds at = departure_;
      PacketPtr packet = finish_head(at);
      cross(at, std::move(packet), leave);
    }
  }

  // What is queued stays queued, in bytes; what is already on the wire keeps its arrival time.
  void change(Nanoseconds now, const LinkValues& values);
  void replay(Nanoseconds now, RateCurve curve);
  const LinkValues& values() const { return values_; }
  const LinkCounters& counters() const { return counters_; }
  uint32_t overhead() const { return overhead_; }
  double backlog(Nanoseconds now) const;
  // The most that may travel as one super-packet: stored and forwarded whole, a longer one would add delay.
  double run_bytes(Nanoseconds now) const { return curve_.at(now) * kRunSeconds; }

 private:
  // 64 KiB at 100 Mbit/s is 5 ms of delay that no wire has; 400 us of the rate is harmless (a network card coalesces
  // interrupts for as long). With 8 flows of 100 Mbit/s it took 0.46-0.50 core where 250 us took 0.58-0.65 (2 runs
  // each).
  static constexpr double kRunSeconds = 400e-6;
  static constexpr double kFullPacket = 1500;
  struct Waiting {
    PacketPtr packet;
    double bytes;
    Nanoseconds came;
  };

  double wire_bytes(const Packet& packet, uint32_t first, uint32_t last) const;
  void enqueue(Nanoseconds now, PacketPtr packet);
  PacketPtr finish_head(Nanoseconds at);
  void settle(Nanoseconds now);
  void idle(Nanoseconds at, double bytes);
  void settle_idle(Nanoseconds now);
  bool lost();
  // Draws no number where it is never true, so that the other draws of a seed stay the same.
  bool chance(double share) { return share > 0 && random_.uniform() < share; }
  Nanoseconds arrival(Nanoseconds at);

  template <class Leave>
  void cross(Nanoseconds at, PacketPtr packet, Leave& leave) {
    const uint32_t segments = packet->segments();
    if (values_.burst_enter > 0) idle(at, wire_bytes(*packet, 0, segments));
    uint32_t begin = 0;
    for (uint32_t i = 0; i < segments; ++i) {
      const bool gone = lost();
      const bool held = !gone && chance(values_.reorder), twice = !gone && chance(values_.duplicate);
      if (!gone && !held && !twice) continue;
      counters_.loss_drops += gone;
      counters_.reordered += held;
      counters_.duplicated += twice;
      if (i > begin) pass(at, packet->part(begin, i), leave);
      for (int copies = gone ? 0 : twice ? 2 : 1; copies > 0; --copies) pass(at, packet->part(i, i + 1), leave, held);
      begin = i + 1;
    }
    if (begin == 0) {
      pass(at, std::move(packet), leave);
    } else if (begin < segments) {
      pass(at, packet->part(begin, segments), leave);
    }
  }
  template <class Leave>
  void pass(Nanoseconds at, PacketPtr packet, Leave& leave, bool held = false) {
    counters_.delivered += packet->segments();
    counters_.delivered_bytes += static_cast<uint64_t>(wire_bytes(*packet, 0, packet->segments()));
    packet->due = arrival(at) + (held ? values_.reorder_by : 0);
    leave(std::move(packet));
  }

  LinkValues values_;
  RateCurve curve_;
  Random random_;
  uint32_t overhead_;
  LinkCounters counters_;
  std::deque<Waiting> queue_;
  double queued_ = 0;     // bytes waiting or in service, as of mark_
  Nanoseconds mark_ = 0;  // up to here the head's service is accounted for
  double head_left_ = 0;  // bytes of the head still to be served at mark_
  Nanoseconds departure_ = kNever, last_arrival_ = 0, jitter_mark_ = 0;
  double could_serve_ = 0;  // bytes since the last departure, as of idle_mark_
  Nanoseconds idle_mark_ = 0;
  double jitter_state_ = 0;
  bool bad_ = false, jitter_started_ = false;
};

}  // namespace gradwire::emulator
