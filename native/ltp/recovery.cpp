#include "ltp/recovery.h"

#include <bit>

namespace gradwire::ltp {
namespace {

constexpr std::uint64_t kReorderPackets = 3;  // RFC 9002; grows to the reordering seen on the path
constexpr std::uint64_t kReorderMost = 256;
constexpr Time kPeerAckDelay = 2 * kMillisecond;  // Acks::kLongest and a scheduling delay
constexpr Time kLongestProbe = kSecond;           // a peer that was paused is reached again within this time
constexpr double kLossGain = 1.0 / 256;           // per packet
constexpr Time kAssumedRtt = 100 * kMillisecond;  // sets the first pacing rate when the handshake measured none

}  // namespace

Recovery::Recovery(CongestionKind kind, std::uint64_t packet, Time handshake_rtt, Time now, LinkCounters& counters)
    : counters_(counters),
      kind_(kind),
      packet_(packet),
      congestion_(make_congestion(kind, packet, handshake_rtt ? handshake_rtt : kAssumedRtt)),
      delivered_at_(now),
      first_sent_(now),
      reorder_packets_(kReorderPackets) {
  if (handshake_rtt) rtt_.sample(now, handshake_rtt, 0);
}

void Recovery::on_new_path(Time now) {
  rtt_ = Rtt{};
  reverse_delay_ = ReverseDelay{};
  congestion_ = make_congestion(kind_, packet_, kAssumedRtt);
  // What is in flight was sent along the old path: its rate says nothing about the new one.
  for (std::uint64_t n = unresolved_; n < sent_.end(); ++n) sent_.at(n).app_limited = true;
  first_sent_ = delivered_at_ = now;
}

void Recovery::on_sent(Time now, SentPacket& packet, bool eliciting) {
  ++counters_.packets_sent;
  counters_.bytes_sent += packet.bytes;
  packet.sent = now;
  if (!eliciting) {
    // ACKs are not acknowledged: a side that only receives must not store them.
    while (unresolved_ < sent_.end() && sent_.at(unresolved_).state != PacketState::in_flight) ++unresolved_;
    return forget(now);
  }
  if (in_flight_ == 0) {
    first_sent_ = delivered_at_ = period_began_ = now;
    period_delivered_ = delivered_;
    first_flight_.restart(delivered_);
  }
  packet.state = PacketState::in_flight;
  packet.delivered = delivered_;
  packet.delivered_at = delivered_at_;
  packet.first_sent = first_sent_;
  packet.app_limited = app_limited_until_ > delivered_;
  in_flight_ += packet.bytes;
  packet.in_flight = in_flight_;
  ++in_flight_packets_;
  last_eliciting_ = now;
  pacer_.spend(packet.bytes);
  congestion_->on_sent(now, packet.bytes, in_flight_);
}

bool Recovery::pacing_allows(Time now, std::uint64_t packet) {
  double rate = congestion_->pacing_rate();
  pacer_.refill(now, rate, Pacer::burst(rate, rtt_.least(), packet));
  return pacer_.allows();
}

bool Recovery::on_ack(Time now, const AckFrame& ack, PacketListener& listener) {
  std::uint64_t largest = ack.largest();
  if (largest >= sent_.end()) return false;
  reverse_delay_.sample(now, ack.stamp_us);
  AckSample sample;
  sample.now = now;
  newest_ = nullptr;
  newest_arrived_us_.reset();
  for (std::size_t w = 0; w < ack.words; ++w)
    for (std::uint64_t bits = ack.bits[w]; bits; bits &= bits - 1) {
      std::uint64_t number = ack.base + 64 * w + static_cast<std::uint64_t>(std::countr_zero(bits));
      if (sent_.holds(number)) acknowledge(now, sent_.at(number), number, sample, listener);
    }
  if (newest_ && &sent_.at(largest) == newest_) {
    rtt_.sample(now, now - newest_->sent, Time{ack.delay_us} * kMicrosecond);
    sample.rtt = rtt_.latest();
    newest_arrived_us_ = ack.stamp_us - ack.delay_us;
  }
  if (!any_acked_ || largest > largest_acked_) largest_acked_ = largest;
  any_acked_ = true;
  detect_losses(now, sample, listener);
  if (sample.acked || sample.lost) finish_sample(now, sample);
  if (!in_flight_ && (sample.acked || sample.lost)) end_period();
  forget(now);
  return true;
}

void Recovery::acknowledge(Time now, SentPacket& packet, std::uint64_t number, AckSample& sample,
                           PacketListener& listener) {
  if (packet.state == PacketState::lost) {
    // It was only late: adapt to how far this path reorders.
    std::uint64_t distance = largest_acked_ > number ? largest_acked_ - number : 0;
    reorder_packets_ = std::clamp(distance + 1, reorder_packets_, kReorderMost);
    reordered_at_ = now;
    ++counters_.spurious_losses;
    if (!packet.mtu_probe) loss_ = std::max(0.0, loss_ - kLossGain);
    packet.state = PacketState::acked;
    listener.on_packet_acked(packet, true);
    return;
  }
  if (packet.state != PacketState::in_flight) return;
  packet.state = PacketState::acked;
  in_flight_ -= packet.bytes;
  --in_flight_packets_;
  delivered_ += packet.bytes;
  delivered_at_ = now;
  sample.acked += packet.bytes;
  acked_generation_ = packet.generation;
  timeouts_ = 0;
  ++counters_.packets_acked;
  counters_.bytes_acked += packet.bytes;
  loss_ -= loss_ * kLossGain;
  // Numbers are in sending order, so the last one visited is the newest.
  newest_ = &packet;
  listener.on_packet_acked(packet, false);
}

void Recovery::declare_lost(SentPacket& packet, AckSample& sample, PacketListener& listener) {
  packet.state = PacketState::lost;
  in_flight_ -= packet.bytes;
  --in_flight_packets_;
  // A lost probe for a larger datagram is not a sign of congestion.
  if (!packet.mtu_probe) {
    sample.lost += packet.bytes;
    sample.lost_sent = std::max(sample.lost_sent, packet.sent);
    ++counters_.packets_lost;
    loss_ += (1 - loss_) * kLossGain;
  }
  listener.on_packet_lost(packet);
}

Time Recovery::reorder_time() const {
  return std::max<Time>(std::max(rtt_.smoothed(), rtt_.latest()) * 9 / 8, kMillisecond);
}

void Recovery::detect_losses(Time now, AckSample& sample, PacketListener& listener) {
  loss_deadline_ = kNever;
  if (!any_acked_) return;
  // A path that no longer reorders must not delay loss detection: the distance is halved once per RTprop window.
  if (reorder_packets_ > kReorderPackets && now - reordered_at_ > Rtt::kWindow) {
    reorder_packets_ = std::max(kReorderPackets, reorder_packets_ / 2);
    reordered_at_ = now;
  }
  while (unresolved_ < sent_.end() && sent_.at(unresolved_).state != PacketState::in_flight) ++unresolved_;
  for (std::uint64_t n = unresolved_; n < largest_acked_; ++n) {
    SentPacket& packet = sent_.at(n);
    if (packet.state != PacketState::in_flight) continue;
    Time due = packet.sent + reorder_time();
    if (largest_acked_ - n >= reorder_packets_ || due <= now)
      declare_lost(packet, sample, listener);
    else
      loss_deadline_ = std::min(loss_deadline_, due);
  }
  while (unresolved_ < sent_.end() && sent_.at(unresolved_).state != PacketState::in_flight) ++unresolved_;
}

void Recovery::finish_sample(Time now, AckSample& sample) {
  sample.in_flight = in_flight_;
  sample.reverse_queue = reverse_delay_.queue();
  sample.delivered = delivered_;
  if (newest_) {
    sample.prior_delivered = newest_->delivered;
    sample.sent = newest_->sent;
    sample.sent_in_flight = newest_->in_flight;
    sample.app_limited = newest_->app_limited;
    first_sent_ = newest_->sent;
    Time interval = std::max(newest_->sent - newest_->first_sent, now - newest_->delivered_at);
    // An interval below a round trip measures the bunching of ACKs, not the path.
    if (interval >= rtt_.least() / 2 && interval > 0) {
      sample.rate = static_cast<double>(delivered_ - newest_->delivered) * kSecond / static_cast<double>(interval);
      delivery_rate_ = sample.rate;
    }
    FirstFlight::Sample flight;
    if (newest_arrived_us_) flight = first_flight_.on_ack(*newest_, delivered_, *newest_arrived_us_);
    if (flight.rate > 0) sample.rate = delivery_rate_ = flight.rate;
    if (flight.path_limited) sample.app_limited = false;
  }
  congestion_->on_ack(sample);
}

void Recovery::end_period() {
  std::uint64_t bytes = delivered_ - period_delivered_;
  if (bytes < kPeriodLeast) return;
  moved_ += bytes;
  moving_ += period_time();
}

// Lost packets are kept for a while, in case they are only late.
void Recovery::forget(Time now) {
  Time keep = 3 * rtt_.smoothed();
  while (sent_.begin() < unresolved_) {
    SentPacket& packet = sent_.at(sent_.begin());
    if (packet.state == PacketState::lost && now - packet.sent < keep) return;
    sent_.pop();
  }
}

Time Recovery::probe_deadline() const {
  if (!in_flight_packets_) return kNever;
  Time wait = rtt_.probe_timeout(kPeerAckDelay) << std::min(timeouts_, 10);
  return last_eliciting_ + std::min(wait, std::max(kLongestProbe, rtt_.probe_timeout(kPeerAckDelay)));
}

Time Recovery::deadline() const { return std::min(loss_deadline_, probe_deadline()); }

void Recovery::on_deadline(Time now, PacketListener& listener) {
  if (loss_deadline_ <= now) {
    AckSample sample;
    sample.now = now;
    newest_ = nullptr;
    detect_losses(now, sample, listener);
    if (sample.lost) finish_sample(now, sample);
    if (!in_flight_ && sample.lost) end_period();
  }
  if (probe_deadline() > now) return;
  ++timeouts_;
  ++counters_.probe_timeouts;
  // The first may be a lost tail; from the second on nothing gets through.
  if (timeouts_ == 2) congestion_->on_timeout(now);
  probes_ = 2;
  last_eliciting_ = now;
}

}  // namespace gradwire::ltp
