// Construction, timers, acknowledged and lost packets, statistics. Packets are built in connection_send.cpp and read in
// connection_receive.cpp.
#include "ltp/connection.h"

#include <algorithm>

namespace gradwire::ltp {

Connection::Connection(const Settings& settings, const ConnectionStart& start, Deadlines& deadlines, Time now)
    : settings_(settings),
      start_(start),
      sealing_(start.sealing, settings.key_limit),
      opening_(start.opening, settings.key_limit),
      recovery_(settings.congestion, kBaseDatagram, start.rtt, now, counters_),
      pmtu_(start.largest_datagram),
      sends_(start.rank, start.peer_credit, control_, events_, counters_),
      receives_(start.rank, settings, deadlines, control_, events_, counters_),
      last_received_(now),
      created_(now),
      now_(now),
      next_keepalive_(now),
      confirmed_(start.confirmed) {
  wipe(start_.sealing);
  wipe(start_.opening);
  // The initiator sends first, so that the responder learns that its answer arrived.
  ping_ = start.confirmed;
}

void Connection::send(Time now, SendRequest request) {
  std::uint64_t usual = std::uint64_t{request.tolerance} * settings_.least / kWhole;
  request.least = std::min(request.least.value_or(static_cast<std::uint32_t>(usual)), request.tolerance);
  sends_.submit(now, std::move(request));
}

bool Connection::cancel(Time now, std::uint64_t token) { return sends_.cancel(token) || receives_.cancel(now, token); }

void Connection::hand_over(std::vector<SendRequest>& sends, std::vector<ReceiveRequest>& receives) {
  sends_.hand_over(sends);
  receives_.hand_over(receives);
}

void Connection::fail(Time now, Failure failure) {
  if (failure_ != Failure::none) return;
  failure_ = failure;
  sends_.fail_all(now, failure);
  receives_.fail_all(failure);
}

void Connection::on_new_path(Time now) {
  recovery_.on_new_path(now);
  if (pmtu_.on_silence(now)) ++counters_.mtu_fallbacks;
}

void Connection::handle_timeout(Time now) {
  now_ = now;
  if (failure_ != Failure::none) return;
  if (now - last_received_ >= settings_.dead_after) return fail(now, Failure::vanished);
  if (!confirmed_ && now - created_ >= settings_.connect_timeout) return fail(now, Failure::half_open);
  if (recovery_.deadline() <= now) {
    recovery_.on_deadline(now, *this);
    if (recovery_.timeouts() == 3 && pmtu_.on_silence(now)) ++counters_.mtu_fallbacks;
    // A probe carries the oldest data that is neither acknowledged nor lost; its first packet stays in flight, as it
    // may be late only. When the deadline only declared a loss, there is no probe to fill.
    if (int wanted = recovery_.probes())
      recovery_.oldest_in_flight([&](const SentPacket& packet) {
        requeue(packet);
        return --wanted > 0;
      });
  }
  receives_.on_deadline(now);
  if (next_keepalive_ <= now) {
    if (now - last_received_ >= settings_.keepalive) ping_ = true;
    next_keepalive_ = now + settings_.keepalive;
  }
}

Time Connection::poll_timeout() {
  if (failure_ != Failure::none) return kNever;
  Time earliest = std::min({acks_.deadline(), recovery_.deadline(), receives_.deadline(), next_keepalive_,
                            last_received_ + settings_.dead_after});
  if (confirmed_ && !recovery_.timeouts()) earliest = std::min(earliest, pmtu_.deadline());
  bool data = sends_.ready(payload()) && recovery_.window_allows(pmtu_.current());
  if (data || !control_.empty()) earliest = std::min(earliest, recovery_.pacing_ready(pmtu_.current()));
  return earliest;
}

void Connection::on_packet_acked(const SentPacket& packet, bool) {
  packet.mtu_probe ? pmtu_.on_probe_acked(now_, packet.bytes) : pmtu_.on_acked(packet.bytes, packet.sent);
  if (packet.count) sends_.on_acked(now_, packet.transfer, packet.first, packet.count);
  for (std::size_t i = 0; i < packet.controls; ++i) {
    const Control& control = packet.control[i];
    if (control.type == FrameType::close) receives_.on_close_acked(control);
    if (control.type == FrameType::open) sends_.on_open_acked(control.id);
  }
}

void Connection::on_packet_lost(const SentPacket& packet) {
  if (!packet.mtu_probe)
    pmtu_.on_lost(packet.bytes, packet.sent);
  else if (pmtu_.on_probe_lost(now_))
    ++counters_.mtu_fallbacks;
  requeue(packet);
}

void Connection::requeue(const SentPacket& packet) {
  if (packet.count) sends_.on_lost(packet.transfer, packet.first, packet.count);
  for (std::size_t i = 0; i < packet.controls; ++i) control_.push_back(packet.control[i]);
}

LinkStats Connection::stats() const {
  LinkStats stats;
  stats.counters = counters_;
  stats.srtt = recovery_.rtt().smoothed();
  stats.rtprop = recovery_.rtt().least();
  stats.rtt_variation = recovery_.rtt().variation();
  stats.bottleneck = recovery_.congestion().bottleneck();
  stats.pacing_rate = recovery_.congestion().pacing_rate();
  stats.delivery_rate = recovery_.delivery_rate();
  stats.loss = recovery_.loss();
  stats.moved = recovery_.moved();
  stats.moving = recovery_.moving();
  stats.in_flight = recovery_.in_flight();
  stats.window = recovery_.congestion().window();
  stats.datagram = static_cast<std::uint16_t>(pmtu_.current());
  return stats;
}

}  // namespace gradwire::ltp
