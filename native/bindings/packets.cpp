#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "bindings/names.h"
#include "virtual/packet_world.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace gradwire {
namespace {

using packets::PacketWorld;
using Row = std::tuple<double, std::uint32_t, std::uint64_t, bool>;

void bind_link(nb::module_& m) {
  using Values = emulator::LinkValues;
  nb::class_<Values>(m, "PacketLink", "One direction of a link; bytes per second, seconds, bytes.")
      .def(nb::init<>())
      .def_rw("rate", &Values::rate)
      .def_prop_rw(
          "delay", [](const Values& v) { return seconds(v.delay); },
          [](Values& v, double s) { v.delay = nanoseconds(s); })
      .def_prop_rw(
          "jitter", [](const Values& v) { return seconds(v.jitter); },
          [](Values& v, double s) { v.jitter = nanoseconds(s); })
      .def_rw("loss", &Values::loss)
      .def_rw("burst_enter", &Values::burst_enter)
      .def_rw("burst_leave", &Values::burst_leave)
      .def_rw("burst_loss", &Values::burst_loss)
      .def_rw("reorder", &Values::reorder)
      .def_prop_rw(
          "reorder_by", [](const Values& v) { return seconds(v.reorder_by); },
          [](Values& v, double s) { v.reorder_by = nanoseconds(s); })
      .def_rw("duplicate", &Values::duplicate)
      .def_rw("queue", &Values::queue)
      .def_rw("mtu", &Values::mtu);
}

void send_tolerant(PacketWorld& world, std::uint32_t host, std::uint32_t peer, std::uint64_t token, std::uint64_t size,
                   double tolerance, std::uint64_t span, std::vector<float> energies) {
  std::shared_ptr<Importance> importance;
  if (!energies.empty()) {
    importance = std::make_shared<Importance>();
    importance->span = span;
    importance->energies = std::move(energies);
  }
  world.send(host, peer, token, size, static_cast<std::uint32_t>(tolerance * kWhole), std::move(importance));
}

}  // namespace

void bind_packets(nb::module_& m) {
  bind_link(m);
  nb::class_<PacketWorld>(m, "PacketWorld", "LTP on the lab's link model, packet by packet, in virtual time.")
      .def(nb::init<std::uint32_t, std::uint64_t>(), "hosts"_a, "seed"_a)
      .def("add_link", &PacketWorld::add_link, "values"_a, "seed"_a, "overhead"_a)
      .def("set_path", &PacketWorld::set_path, "source"_a, "target"_a, "links"_a)
      .def("connect", &PacketWorld::connect, "one"_a, "other"_a)
      .def(
          "expect",
          [](PacketWorld& world, std::uint32_t host, std::uint32_t peer, std::uint64_t token, std::uint64_t size,
             double deadline) { world.expect(host, peer, token, size, nanoseconds(deadline)); },
          "host"_a, "peer"_a, "token"_a, "size"_a, "deadline"_a = 0.0)
      .def(
          "send",
          [](PacketWorld& world, std::uint32_t host, std::uint32_t peer, std::uint64_t token, std::uint64_t size) {
            world.send(host, peer, token, size);
          },
          "host"_a, "peer"_a, "token"_a, "size"_a)
      .def("send_tolerant", &send_tolerant, "host"_a, "peer"_a, "token"_a, "size"_a, "tolerance"_a, "span"_a,
           "energies"_a, "Without energies the order is permuted.")
      .def(
          "take_missing",
          [](PacketWorld& world, std::uint32_t host, std::uint64_t token) {
            std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
            for (const ByteRange& range : world.take_missing(host, token))
              ranges.emplace_back(range.offset, range.length);
            return ranges;
          },
          "host"_a, "token"_a, "Byte ranges that a tolerant transfer has lost.")
      .def(
          "run",
          [](PacketWorld& world, double limit) {
            std::vector<Row> rows;
            for (const auto& one : world.run(nanoseconds(limit)))
              rows.emplace_back(seconds(one.at), one.host, one.token, one.sent);
            return rows;
          },
          "limit"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Until something lands: (seconds, host, token, whether it is the sender's news).")
      .def_prop_ro("now", [](const PacketWorld& world) { return seconds(world.now()); })
      .def(
          "stats",
          [](const PacketWorld& world, std::uint32_t host, std::uint32_t peer) {
            return describe(world.stats(host, peer));
          },
          "host"_a, "peer"_a);
}

}  // namespace gradwire
