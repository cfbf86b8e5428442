#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "bindings/names.h"
#include "ltp_io/loop.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace gradwire {
namespace {

using Released = nb::call_guard<nb::gil_scoped_release>;
using Ranges = std::vector<std::pair<std::uint64_t, std::uint64_t>>;
// Offset, span, address and number of the energies.
using Energies = std::tuple<std::uint64_t, std::uint64_t, std::uintptr_t, std::size_t>;

Ranges pairs(const std::vector<ByteRange>& ranges) {
  Ranges out;
  for (const auto& range : ranges) out.emplace_back(range.offset, range.length);
  return out;
}

std::map<std::string, std::uint64_t> endpoint_stats(const ltp_io::Stats& stats) {
  const auto& e = stats.endpoint;
  const auto& s = stats.socket;
  return {{"malformed", e.malformed},
          {"wrong_version", e.wrong_version},
          {"authentication_failed", e.authentication_failed},
          {"bad_cookie", e.bad_cookie},
          {"stray", e.stray},
          {"resets_sent", e.resets_sent},
          {"retries_sent", e.retries_sent},
          {"challenges_sent", e.challenges_sent},
          {"moves", e.moves},
          {"send_calls", s.send_calls},
          {"receive_calls", s.receive_calls},
          {"datagrams_sent", s.datagrams_sent},
          {"datagrams_received", s.datagrams_received},
          {"send_blocked", s.send_blocked},
          {"send_errors", s.send_errors},
          {"wakes", stats.wakes}};
}

void bind_config(nb::module_& m) {
  nb::class_<ltp_io::LoopConfig>(m, "LtpConfig", "Checked settings of an endpoint; times in seconds.")
      .def(
          "__init__",
          [](ltp_io::LoopConfig* c, std::uint32_t rank, std::uint64_t epoch, nb::bytes secret) {
            new (c) ltp_io::LoopConfig;
            c->self = {rank, epoch};
            auto* data = static_cast<const std::uint8_t*>(secret.data());
            c->secret.assign(data, data + secret.size());
          },
          "rank"_a, "epoch"_a, "secret"_a)
      .def_rw("host", &ltp_io::LoopConfig::host)
      .def_rw("port", &ltp_io::LoopConfig::port)
      .def_rw("socket_buffer", &ltp_io::LoopConfig::socket_buffer)
      .def(
          "set_protocol",
          [](ltp_io::LoopConfig& c, bool encrypt, bool cubic, std::uint32_t credit, std::uint16_t largest_datagram) {
            c.settings.encrypt = encrypt;
            c.settings.congestion = cubic ? ltp::CongestionKind::cubic : ltp::CongestionKind::bbr;
            c.settings.credit = credit;
            c.settings.largest_datagram = largest_datagram;
          },
          "encrypt"_a, "cubic"_a, "credit"_a, "largest_datagram"_a)
      .def(
          "set_times",
          [](ltp_io::LoopConfig& c, double keepalive, double dead_after, double connect, double slack,
             double first_deadline) {
            c.settings.keepalive = nanoseconds(keepalive);
            c.settings.dead_after = nanoseconds(dead_after);
            c.settings.connect_timeout = nanoseconds(connect);
            c.settings.deadline_slack = nanoseconds(slack);
            c.settings.first_deadline = nanoseconds(first_deadline);
          },
          "keepalive"_a, "dead_after"_a, "connect_timeout"_a, "deadline_slack"_a, "first_deadline"_a);
}

void bind_result(nb::module_& m) {
  nb::class_<Event>(m, "LtpResult", "What became of one transfer.")
      .def_ro("rank", &Event::rank)
      .def_ro("size", &Event::size)
      .def_ro("arrived", &Event::arrived)
      .def_prop_ro("elapsed", [](const Event& e) { return seconds(e.elapsed); })
      .def_prop_ro("reason", [](const Event& e) { return name_of(e.reason); })
      .def_prop_ro("failure", [](const Event& e) { return name_of(e.failure); })
      .def_prop_ro("missing", [](const Event& e) { return pairs(e.missing); });
}

std::uint64_t send(ltp_io::Loop& loop, std::uint32_t rank, std::uintptr_t data, std::uint64_t size, std::uint64_t tag,
                   std::pair<std::uint16_t, std::uint16_t> unit, std::uint32_t tolerance, const Ranges& critical,
                   std::uint64_t seed, const Energies& energies) {
  SendRequest request;
  request.data = reinterpret_cast<const std::uint8_t*>(data);
  request.size = size;
  request.tag = tag;
  request.element = unit.first;
  request.record = unit.second;
  request.tolerance = tolerance;
  for (auto [offset, length] : critical) request.critical.push_back({offset, length});
  request.seed = seed;
  if (auto [offset, span, address, count] = energies; count) {
    auto importance = std::make_shared<Importance>();
    importance->offset = offset;
    importance->span = span;
    auto* values = reinterpret_cast<const float*>(address);
    importance->energies.assign(values, values + count);
    request.importance = std::move(importance);
  }
  return loop.send(rank, std::move(request));
}

void bind_loop(nb::module_& m) {
  nb::class_<ltp_io::Loop>(
      m, "LtpLoop", "The event loop thread with its socket. Buffers given by address stay alive until waited for.")
      .def(nb::init<ltp_io::LoopConfig>(), "config"_a)
      .def_prop_ro("port", &ltp_io::Loop::port)
      .def(
          "connect",
          [](ltp_io::Loop& l, std::uint32_t rank, const std::string& host, std::uint16_t port) {
            l.connect(rank, parse_address(host, port));
          },
          "rank"_a, "host"_a, "port"_a)
      .def(
          "wait_connected",
          [](ltp_io::Loop& l, std::uint32_t rank, double timeout) {
            Failure failure = Failure::none;
            bool ok = l.wait_connected(rank, monotonic_now() + nanoseconds(timeout), failure);
            return std::string(ok ? "connected" : failure == Failure::none ? "waiting" : name_of(failure));
          },
          "rank"_a, "timeout"_a, Released())
      .def("send", &send, "rank"_a, "data"_a, "size"_a, "tag"_a, "unit"_a, "tolerance"_a, "critical"_a, "seed"_a,
           "importance"_a)
      .def(
          "receive",
          [](ltp_io::Loop& l, std::uint32_t rank, std::uintptr_t data, std::uint64_t size, std::uint64_t tag,
             double threshold, double deadline) {
            return l.receive(rank, {0, reinterpret_cast<std::uint8_t*>(data), size, tag, nanoseconds(threshold),
                                    nanoseconds(deadline)});
          },
          "rank"_a, "data"_a, "size"_a, "tag"_a, "threshold"_a, "deadline"_a)
      .def(
          "wait",
          [](ltp_io::Loop& l, std::uint64_t token, double timeout) {
            return l.wait(token, monotonic_now() + nanoseconds(timeout));
          },
          "token"_a, "timeout"_a, Released())
      .def(
          "wait_any",
          [](ltp_io::Loop& l, const std::vector<std::uint64_t>& tokens, double timeout) {
            return l.wait_any(tokens, monotonic_now() + nanoseconds(timeout));
          },
          "tokens"_a, "timeout"_a, Released())
      .def("nudge", &ltp_io::Loop::nudge)
      .def("cancel", &ltp_io::Loop::cancel, "rank"_a, "token"_a, Released())
      .def("detach", &ltp_io::Loop::detach, "rank"_a, "token"_a, Released())
      .def(
          "link_stats",
          [](ltp_io::Loop& l) {
            std::map<std::uint32_t, std::map<std::string, double>> out;
            for (auto& [rank, stats] : l.stats().links) out[rank] = describe(stats);
            return out;
          },
          Released())
      .def(
          "endpoint_stats", [](ltp_io::Loop& l) { return endpoint_stats(l.stats()); }, Released())
      .def_prop_ro("stopped", &ltp_io::Loop::stopped)
      .def("close", &ltp_io::Loop::close, Released());
}

}  // namespace

void bind_ltp(nb::module_& m) {
  bind_config(m);
  bind_result(m);
  bind_loop(m);
}

}  // namespace gradwire
