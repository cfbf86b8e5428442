#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "bindings/names.h"
#include "io/loop.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace gradwire {
namespace {

using Released = nb::call_guard<nb::gil_scoped_release>;
using Ranges = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

double seconds(ltp::Time time) { return static_cast<double>(time) / 1e9; }

const char* name(ltp::Failure failure) {
  static constexpr const char* names[] = {"none", "no_answer", "authentication", "rank_in_use", "wrong_rank", "too_many_peers",
                                          "vanished", "restarted", "half_open", "closed", "protocol", "local_close"};
  return names[static_cast<std::size_t>(failure)];
}

const char* name(ltp::CloseReason reason) {
  static constexpr const char* names[] = {"none", "complete", "threshold", "deadline", "refused", "cancelled"};
  return names[static_cast<std::size_t>(reason)];
}

Ranges pairs(const std::vector<ltp::ByteRange>& ranges) {
  Ranges out;
  for (const auto& range : ranges) out.emplace_back(range.offset, range.length);
  return out;
}

std::map<std::string, double> link_stats(const ltp::LinkStats& s) {
  auto n = [](std::uint64_t value) { return static_cast<double>(value); };
  const ltp::Counters& c = s.counters;
  return {{"srtt", seconds(s.srtt)}, {"rtprop", seconds(s.rtprop)}, {"rtt_variation", seconds(s.rtt_variation)},
          {"bottleneck", s.bottleneck}, {"pacing_rate", s.pacing_rate}, {"delivery_rate", s.delivery_rate}, {"loss", s.loss},
          {"moved", n(s.moved)}, {"moving", seconds(s.moving)},
          {"in_flight", n(s.in_flight)}, {"window", n(s.window)}, {"datagram", s.datagram},
          {"packets_sent", n(c.packets_sent)}, {"bytes_sent", n(c.bytes_sent)}, {"packets_received", n(c.packets_received)},
          {"bytes_received", n(c.bytes_received)}, {"packets_acked", n(c.packets_acked)}, {"bytes_acked", n(c.bytes_acked)},
          {"packets_lost", n(c.packets_lost)}, {"spurious_losses", n(c.spurious_losses)},
          {"retransmitted_bytes", n(c.retransmitted_bytes)}, {"duplicate_data", n(c.duplicate_data)}, {"late_data", n(c.late_data)},
          {"unexpected_data", n(c.unexpected_data)}, {"authentication_failed", n(c.authentication_failed)},
          {"replayed", n(c.replayed)}, {"malformed", n(c.malformed)}, {"key_updates", n(c.key_updates)},
          {"probe_timeouts", n(c.probe_timeouts)}, {"mtu_fallbacks", n(c.mtu_fallbacks)}};
}

std::map<std::string, std::uint64_t> endpoint_stats(const io::Stats& stats) {
  const auto& e = stats.endpoint;
  const auto& s = stats.socket;
  return {{"malformed", e.malformed}, {"wrong_version", e.wrong_version}, {"authentication_failed", e.authentication_failed},
          {"bad_cookie", e.bad_cookie}, {"stray", e.stray}, {"resets_sent", e.resets_sent}, {"retries_sent", e.retries_sent},
          {"send_calls", s.send_calls}, {"receive_calls", s.receive_calls}, {"datagrams_sent", s.datagrams_sent},
          {"datagrams_received", s.datagrams_received}, {"send_blocked", s.send_blocked}, {"send_errors", s.send_errors},
          {"wakes", stats.wakes}};
}

void bind_config(nb::module_& m) {
  nb::class_<io::LoopConfig>(m, "LtpConfig", "Checked settings of an endpoint; times in seconds.")
      .def("__init__",
           [](io::LoopConfig* c, std::uint32_t rank, std::uint64_t epoch, nb::bytes secret) {
             new (c) io::LoopConfig;
             c->self = {rank, epoch};
             auto* data = static_cast<const std::uint8_t*>(secret.data());
             c->secret.assign(data, data + secret.size());
           },
           "rank"_a, "epoch"_a, "secret"_a)
      .def_rw("host", &io::LoopConfig::host)
      .def_rw("port", &io::LoopConfig::port)
      .def_rw("socket_buffer", &io::LoopConfig::socket_buffer)
      .def("set_protocol",
           [](io::LoopConfig& c, bool encrypt, bool cubic, std::uint32_t credit, std::uint16_t largest_datagram) {
             c.settings.encrypt = encrypt;
             c.settings.congestion = cubic ? ltp::CongestionKind::cubic : ltp::CongestionKind::bbr;
             c.settings.credit = credit;
             c.settings.largest_datagram = largest_datagram;
           },
           "encrypt"_a, "cubic"_a, "credit"_a, "largest_datagram"_a)
      .def("set_times",
           [](io::LoopConfig& c, double keepalive, double dead_after, double connect, double slack, double first_deadline) {
             c.settings.keepalive = nanoseconds(keepalive);
             c.settings.dead_after = nanoseconds(dead_after);
             c.settings.connect_timeout = nanoseconds(connect);
             c.settings.deadline_slack = nanoseconds(slack);
             c.settings.first_deadline = nanoseconds(first_deadline);
           },
           "keepalive"_a, "dead_after"_a, "connect_timeout"_a, "deadline_slack"_a, "first_deadline"_a);
}

void bind_result(nb::module_& m) {
  nb::class_<ltp::Event>(m, "LtpResult", "What became of one transfer.")
      .def_ro("rank", &ltp::Event::rank)
      .def_ro("size", &ltp::Event::size)
      .def_ro("arrived", &ltp::Event::arrived)
      .def_prop_ro("elapsed", [](const ltp::Event& e) { return seconds(e.elapsed); })
      .def_prop_ro("reason", [](const ltp::Event& e) { return name(e.reason); })
      .def_prop_ro("failure", [](const ltp::Event& e) { return name(e.failure); })
      .def_prop_ro("missing", [](const ltp::Event& e) { return pairs(e.missing); });
}

std::uint64_t send(io::Loop& loop, std::uint32_t rank, std::uintptr_t data, std::uint64_t size, std::uint64_t tag,
                   std::pair<std::uint16_t, std::uint16_t> unit, std::uint32_t tolerance, const Ranges& critical, std::uint64_t seed) {
  ltp::SendRequest request;
  request.data = reinterpret_cast<const std::uint8_t*>(data);
  request.size = size;
  request.tag = tag;
  request.element = unit.first;
  request.record = unit.second;
  request.tolerance = tolerance;
  for (auto [offset, length] : critical) request.critical.push_back({offset, length});
  request.seed = seed;
  return loop.send(rank, std::move(request));
}

void bind_loop(nb::module_& m) {
  nb::class_<io::Loop>(m, "LtpLoop", "The event loop thread with its socket. Buffers given by address stay alive until waited for.")
      .def(nb::init<io::LoopConfig>(), "config"_a)
      .def_prop_ro("port", &io::Loop::port)
      .def("connect", [](io::Loop& l, std::uint32_t rank, const std::string& host, std::uint16_t port) {
             l.connect(rank, io::parse_address(host, port)); }, "rank"_a, "host"_a, "port"_a)
      .def("wait_connected", [](io::Loop& l, std::uint32_t rank, double timeout) {
             ltp::Failure failure = ltp::Failure::none;
             bool ok = l.wait_connected(rank, io::monotonic_now() + nanoseconds(timeout), failure);
             return std::string(ok ? "connected" : failure == ltp::Failure::none ? "waiting" : name(failure)); },
           "rank"_a, "timeout"_a, Released())
      .def("send", &send, "rank"_a, "data"_a, "size"_a, "tag"_a, "unit"_a, "tolerance"_a, "critical"_a, "seed"_a)
      .def("receive", [](io::Loop& l, std::uint32_t rank, std::uintptr_t data, std::uint64_t size, std::uint64_t tag,
                         double threshold, double deadline) {
             return l.receive(rank, {0, reinterpret_cast<std::uint8_t*>(data), size, tag, nanoseconds(threshold), nanoseconds(deadline)}); },
           "rank"_a, "data"_a, "size"_a, "tag"_a, "threshold"_a, "deadline"_a)
      .def("wait", [](io::Loop& l, std::uint64_t token, double timeout) {
             return l.wait(token, io::monotonic_now() + nanoseconds(timeout)); }, "token"_a, "timeout"_a, Released())
      .def("wait_any", [](io::Loop& l, const std::vector<std::uint64_t>& tokens, double timeout) {
             return l.wait_any(tokens, io::monotonic_now() + nanoseconds(timeout)); }, "tokens"_a, "timeout"_a, Released())
      .def("nudge", &io::Loop::nudge)
      .def("cancel", &io::Loop::cancel, "rank"_a, "token"_a, Released())
      .def("link_stats", [](io::Loop& l) {
             std::map<std::uint32_t, std::map<std::string, double>> out;
             for (auto& [rank, stats] : l.stats().links) out[rank] = link_stats(stats);
             return out; }, Released())
      .def("endpoint_stats", [](io::Loop& l) { return endpoint_stats(l.stats()); }, Released())
      .def_prop_ro("stopped", &io::Loop::stopped)
      .def("close", &io::Loop::close, Released());
}

}  // namespace

const char* name_of(ltp::Failure failure) { return name(failure); }
std::map<std::string, double> describe(const ltp::LinkStats& stats) { return link_stats(stats); }

void bind_ltp(nb::module_& m) {
  bind_config(m);
  bind_result(m);
  bind_loop(m);
}

}  // namespace gradwire
