#include "bindings/names.h"

namespace gradwire {

const char* name_of(Failure failure) {
  static constexpr const char* names[] = {
      "none",      "no_answer", "authentication", "rank_in_use", "wrong_rank",  "too_many_peers", "vanished",
      "restarted", "half_open", "closed",         "protocol",    "local_close", "wrong_version",  "key_limit"};
  return names[static_cast<std::size_t>(failure)];
}

const char* name_of(CloseReason reason) {
  static constexpr const char* names[] = {"none", "complete", "threshold", "deadline", "refused", "cancelled"};
  return names[static_cast<std::size_t>(reason)];
}

std::map<std::string, double> describe(const LinkStats& s) {
  auto n = [](std::uint64_t value) { return static_cast<double>(value); };
  const LinkCounters& c = s.counters;
  return {{"srtt", seconds(s.srtt)},
          {"rtprop", seconds(s.rtprop)},
          {"rtt_variation", seconds(s.rtt_variation)},
          {"bottleneck", s.bottleneck},
          {"pacing_rate", s.pacing_rate},
          {"delivery_rate", s.delivery_rate},
          {"loss", s.loss},
          {"moved", n(s.moved)},
          {"moving", seconds(s.moving)},
          {"in_flight", n(s.in_flight)},
          {"window", n(s.window)},
          {"datagram", s.datagram},
          {"packets_sent", n(c.packets_sent)},
          {"bytes_sent", n(c.bytes_sent)},
          {"packets_received", n(c.packets_received)},
          {"bytes_received", n(c.bytes_received)},
          {"packets_acked", n(c.packets_acked)},
          {"bytes_acked", n(c.bytes_acked)},
          {"packets_lost", n(c.packets_lost)},
          {"spurious_losses", n(c.spurious_losses)},
          {"retransmitted_bytes", n(c.retransmitted_bytes)},
          {"duplicate_data", n(c.duplicate_data)},
          {"late_data", n(c.late_data)},
          {"unexpected_data", n(c.unexpected_data)},
          {"authentication_failed", n(c.authentication_failed)},
          {"replayed", n(c.replayed)},
          {"malformed", n(c.malformed)},
          {"key_updates", n(c.key_updates)},
          {"probe_timeouts", n(c.probe_timeouts)},
          {"mtu_fallbacks", n(c.mtu_fallbacks)}};
}

}  // namespace gradwire
