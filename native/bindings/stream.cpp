#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "bindings/names.h"
#include "stream/loop.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace gradwire {
namespace {

using Released = nb::call_guard<nb::gil_scoped_release>;
using Ranges = std::vector<std::pair<std::uint64_t, std::uint64_t>>;
// Offset, span, address and number of the energies.
using Energies = std::tuple<std::uint64_t, std::uint64_t, std::uintptr_t, std::size_t>;

void bind_config(nb::module_& m) {
  nb::class_<stream::LoopConfig>(m, "StreamConfig", "Checked settings of the streams' loop; times in seconds.")
      .def(
          "__init__",
          [](stream::LoopConfig* c, std::uint32_t rank, std::uint64_t epoch, nb::bytes secret) {
            new (c) stream::LoopConfig;
            c->rank = rank;
            c->epoch = epoch;
            auto* data = static_cast<const std::uint8_t*>(secret.data());
            c->secret.assign(data, data + secret.size());
          },
          "rank"_a, "epoch"_a, "secret"_a)
      .def_rw("local", &stream::LoopConfig::local)
      .def_rw("host", &stream::LoopConfig::host)
      .def_rw("port", &stream::LoopConfig::port)
      .def_rw("encrypt", &stream::LoopConfig::encrypt)
      .def_rw("credit", &stream::LoopConfig::credit)
      .def_rw("ring", &stream::LoopConfig::ring)
      .def(
          "set_times",
          [](stream::LoopConfig& c, double keepalive, double dead_after, double connect, double spin) {
            c.keepalive = nanoseconds(keepalive);
            c.dead_after = nanoseconds(dead_after);
            c.connect_timeout = nanoseconds(connect);
            c.spin = nanoseconds(spin);
          },
          "keepalive"_a, "dead_after"_a, "connect_timeout"_a, "spin"_a);
}

std::map<std::string, std::uint64_t> counters(const stream::Counters& c) {
  return {{"malformed", c.malformed}, {"authentication_failed", c.authentication_failed},
          {"refused", c.refused},     {"accepted", c.accepted},
          {"dropped", c.dropped},     {"wrong_version", c.wrong_version},
          {"wakes", c.wakes}};
}

std::uint64_t send(stream::Loop& loop, std::uint32_t rank, std::uintptr_t data, std::uint64_t size, std::uint64_t tag,
                   std::pair<std::uint16_t, std::uint16_t>, std::uint32_t, const Ranges&, std::uint64_t,
                   const Energies&) {
  SendRequest request;
  request.data = reinterpret_cast<const std::uint8_t*>(data);
  request.size = size;
  request.tag = tag;
  nb::gil_scoped_release released;
  return loop.send(rank, std::move(request));
}

void bind_loop(nb::module_& m) {
  nb::class_<stream::Loop>(m, "StreamLoop",
                           "All streams of a process. Buffers given by address stay alive until waited for.")
      .def(nb::init<stream::LoopConfig>(), "config"_a)
      .def_prop_ro("port", &stream::Loop::port)
      .def("connect", &stream::Loop::connect, "rank"_a, "host"_a, "port"_a, Released())
      .def(
          "wait_connected",
          [](stream::Loop& l, std::uint32_t rank, double timeout) {
            Failure failure = Failure::none;
            bool ok = l.wait_connected(rank, monotonic_now() + nanoseconds(timeout), failure);
            return std::string(ok ? "connected" : failure == Failure::none ? "waiting" : name_of(failure));
          },
          "rank"_a, "timeout"_a, Released())
      .def("send", &send, "rank"_a, "data"_a, "size"_a, "tag"_a, "unit"_a, "tolerance"_a, "critical"_a, "seed"_a,
           "importance"_a)
      .def(
          "receive",
          [](stream::Loop& l, std::uint32_t rank, std::uintptr_t data, std::uint64_t size, std::uint64_t tag, double,
             double) { return l.receive(rank, {0, reinterpret_cast<std::uint8_t*>(data), size, tag, 0, 0}); },
          "rank"_a, "data"_a, "size"_a, "tag"_a, "threshold"_a, "deadline"_a, Released())
      .def(
          "wait_any",
          [](stream::Loop& l, const std::vector<std::uint64_t>& tokens, double timeout) {
            return l.wait_any(tokens, monotonic_now() + nanoseconds(timeout));
          },
          "tokens"_a, "timeout"_a, Released())
      .def("nudge", &stream::Loop::nudge)
      .def(
          "wait",
          [](stream::Loop& l, std::uint64_t token, double timeout) {
            return l.wait(token, monotonic_now() + nanoseconds(timeout));
          },
          "token"_a, "timeout"_a, Released())
      .def("cancel", &stream::Loop::cancel, "rank"_a, "token"_a, Released())
      .def("detach", &stream::Loop::detach, "rank"_a, "token"_a, Released())
      .def(
          "link_stats",
          [](stream::Loop& l) {
            std::map<std::uint32_t, std::map<std::string, double>> out;
            for (auto& [rank, stats] : l.link_stats()) out[rank] = describe(stats);
            return out;
          },
          Released())
      .def(
          "endpoint_stats", [](stream::Loop& l) { return counters(l.counters()); }, Released())
      .def_prop_ro("stopped", &stream::Loop::stopped)
      .def("close", &stream::Loop::close, Released());
}

}  // namespace

void bind_stream(nb::module_& m) {
  bind_config(m);
  bind_loop(m);
}

}  // namespace gradwire
