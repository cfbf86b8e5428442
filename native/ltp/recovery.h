// Recovery: the state of each sent packet. Acknowledgements and timers in; acknowledged and lost packets and samples
// for the congestion controller out. RFC 9002's loss detection with an adaptive reordering threshold, and delivery-rate
// samples.
#pragma once
#include <memory>
#include <optional>

#include "core/link_stats.h"
#include "ltp/congestion.h"
#include "ltp/first_flight.h"
#include "ltp/frame.h"
#include "ltp/pacer.h"
#include "ltp/reverse_delay.h"
#include "ltp/rtt.h"
#include "ltp/sent.h"

namespace gradwire::ltp {

// Receives the state changes. `spurious`: the packet had been declared lost before.
class PacketListener {
 public:
  virtual ~PacketListener() = default;
  virtual void on_packet_acked(const SentPacket& packet, bool spurious) = 0;
  virtual void on_packet_lost(const SentPacket& packet) = 0;
};

class Recovery {
 public:
  Recovery(CongestionKind kind, std::uint64_t packet, Time handshake_rtt, Time now, LinkCounters& counters);

  // The record of the next packet, to be filled; its number is `next_number()` before the call.
  SentPacket& begin_packet() { return sent_.push(); }
  std::uint64_t next_number() const { return sent_.end(); }
  // Called once the record is filled: starts tracking it.
  void on_sent(Time now, SentPacket& packet, bool eliciting);
  // False when the ACK names a packet never sent: a protocol error.
  bool on_ack(Time now, const AckFrame& ack, PacketListener& listener);
  // The next time at which a loss is declared or a probe is due.
  Time deadline() const;
  void on_deadline(Time now, PacketListener& listener);

  // Window, rate and round trips start anew; what is in flight stays.
  void on_new_path(Time now);

  // Probes that may be sent regardless of window and pacing.
  int probes() const { return probes_; }
  void spend_probe() { probes_ = probes_ > 0 ? probes_ - 1 : 0; }
  // One packet may always be in flight: a window counted in base packets can be smaller than one jumbo datagram.
  bool window_allows(std::uint64_t bytes) const { return !in_flight_ || in_flight_ + bytes <= congestion_->window(); }
  bool pacing_allows(Time now, std::uint64_t packet);
  Time pacing_ready(std::uint64_t packet) const {
    double rate = congestion_->pacing_rate();
    return pacer_.ready(rate, Pacer::burst(rate, rtt_.least(), packet));
  }
  void on_app_limited() { app_limited_until_ = delivered_ + std::max<std::uint64_t>(in_flight_, 1); }

  const Rtt& rtt() const { return rtt_; }
  const Congestion& congestion() const { return *congestion_; }
  std::uint64_t in_flight() const { return in_flight_; }
  double delivery_rate() const { return delivery_rate_; }
  double loss() const { return loss_; }
  // Finished busy periods and the present one (from idle to idle): how many bytes were acknowledged, and in what time.
  std::uint64_t moved() const { return moved_ + (carries_data() ? delivered_ - period_delivered_ : 0); }
  Time moving() const { return moving_ + (carries_data() ? period_time() : 0); }
  int timeouts() const { return timeouts_; }
  bool generation_acked(std::uint8_t generation) const { return any_acked_ && acked_generation_ == generation; }
  // Calls visit(packet) for the oldest packets still in flight until it returns false.
  template <class F>
  void oldest_in_flight(F visit) {
    for (std::uint64_t n = unresolved_; n < sent_.end(); ++n)
      if (sent_.at(n).state == PacketState::in_flight && !visit(sent_.at(n))) return;
  }

 private:
  // Busy periods of control frames alone do not show a rate.
  static constexpr std::uint64_t kPeriodLeast = 16 * 1024;

  void acknowledge(Time now, SentPacket& packet, std::uint64_t number, AckSample& sample, PacketListener& listener);
  void declare_lost(SentPacket& packet, AckSample& sample, PacketListener& listener);
  void detect_losses(Time now, AckSample& sample, PacketListener& listener);
  void finish_sample(Time now, AckSample& sample);
  void forget(Time now);
  void end_period();
  bool carries_data() const { return in_flight_ && delivered_ - period_delivered_ >= kPeriodLeast; }
  Time period_time() const { return std::max<Time>(0, delivered_at_ - period_began_ - rtt_.least()); }
  Time reorder_time() const;
  Time probe_deadline() const;

  LinkCounters& counters_;
  SentRing sent_;
  Rtt rtt_;
  ReverseDelay reverse_delay_;
  FirstFlight first_flight_;
  CongestionKind kind_;
  std::uint64_t packet_;
  std::unique_ptr<Congestion> congestion_;
  Pacer pacer_;
  std::uint64_t in_flight_ = 0, in_flight_packets_ = 0;
  std::uint64_t delivered_ = 0;
  Time delivered_at_, first_sent_;
  std::uint64_t app_limited_until_ = 1;
  std::uint64_t unresolved_ = 0;  // every packet before it is acknowledged or lost
  std::uint64_t largest_acked_ = 0;
  bool any_acked_ = false;
  std::uint8_t acked_generation_ = 0;
  std::uint64_t reorder_packets_;
  Time reordered_at_ = 0;  // when reordering by that distance last happened
  Time loss_deadline_ = kNever;
  Time last_eliciting_ = 0;
  int probes_ = 0, timeouts_ = 0;
  double delivery_rate_ = 0, loss_ = 0;
  std::uint64_t moved_ = 0, period_delivered_ = 0;
  Time moving_ = 0, period_began_ = 0;
  const SentPacket* newest_ = nullptr;
  std::optional<std::uint32_t> newest_arrived_us_;  // by the receiver's clock
};

}  // namespace gradwire::ltp
