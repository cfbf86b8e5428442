#include "shm_allreduce/shm_allreduce.h"

#include <fcntl.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>

#include "bindings/bindings.h"
#include "bindings/names.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace gradwire {
namespace {

using shm_allreduce::ShmAllreduce;

Time after(double seconds) { return monotonic_now() + nanoseconds(seconds); }

const std::uint8_t* header_of(const nb::bytes& header) {
  if (header.size() < shm_allreduce::kHeader)
    throw std::invalid_argument("the header of a call must have at least 56 bytes");
  return static_cast<const std::uint8_t*>(header.data());
}

// The caller owns the descriptor.
int make(std::size_t ranks, std::size_t slot) {
  int file = ::fcntl(shm_allreduce::make_memory({ranks, slot}).get(), F_DUPFD_CLOEXEC, 0);
  if (file < 0) throw std::system_error(errno, std::generic_category(), "fcntl");
  return file;
}

void bind_values(nb::module_& m) {
  nb::enum_<shm_allreduce::Status>(m, "ShmStatus")
      .value("waiting", shm_allreduce::Status::waiting)
      .value("done", shm_allreduce::Status::done)
      .value("differs", shm_allreduce::Status::differs)
      .value("fold", shm_allreduce::Status::fold);
  nb::enum_<shm_allreduce::Kind>(m, "ShmKind")
      .value("caller", shm_allreduce::Kind::caller)
      .value("float32", shm_allreduce::Kind::float32)
      .value("float64", shm_allreduce::Kind::float64)
      .value("int8", shm_allreduce::Kind::int8)
      .value("int16", shm_allreduce::Kind::int16)
      .value("int32", shm_allreduce::Kind::int32)
      .value("int64", shm_allreduce::Kind::int64);
  nb::class_<shm_allreduce::Fold>(m, "ShmFold",
                                  "What the caller adds up: `size` bytes of the data, and where they lie in the slots.")
      .def_ro("phase", &shm_allreduce::Fold::phase)
      .def_ro("offset", &shm_allreduce::Fold::offset)
      .def_ro("place", &shm_allreduce::Fold::place)
      .def_ro("size", &shm_allreduce::Fold::bytes);
}

}  // namespace

void bind_shm_allreduce(nb::module_& m) {
  bind_values(m);
  nb::class_<ShmAllreduce>(m, "ShmAllreduce",
                           "Sums between the ranks of one host, through memory that all of them see.")
      .def_static("make", &make, "ranks"_a, "slot"_a)
      .def(
          "__init__",
          [](ShmAllreduce* self, int file, std::size_t ranks, std::size_t slot, std::size_t rank, double spin) {
            new (self) ShmAllreduce(file, {ranks, slot}, rank, nanoseconds(spin));
          },
          "file"_a, "ranks"_a, "slot"_a, "rank"_a, "spin"_a)
      .def(
          "announce",
          [](ShmAllreduce& b, std::uint64_t number, std::uint64_t sums, const nb::bytes& header) {
            b.announce(number, sums, header_of(header));
          },
          "number"_a, "sums"_a, "header"_a)
      .def(
          "begin",
          [](ShmAllreduce& b, std::uint64_t number, const nb::bytes& header, std::uintptr_t data, std::size_t bytes,
             std::size_t item, shm_allreduce::Kind kind, bool sharded) {
            b.begin(number, header_of(header), {reinterpret_cast<std::uint8_t*>(data), bytes, item, kind, sharded});
          },
          "number"_a, "header"_a, "data"_a, "size"_a, "item"_a, "kind"_a, "sharded"_a)
      .def(
          "step", [](ShmAllreduce& b, double timeout) { return b.step(after(timeout)); }, "timeout"_a,
          nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("folding", &ShmAllreduce::folding)
      .def("folded", &ShmAllreduce::folded)
      .def(
          "slot",
          [](ShmAllreduce& b, std::uint64_t phase, std::size_t rank) {
            return reinterpret_cast<std::uintptr_t>(b.slot(phase, rank));
          },
          "phase"_a, "rank"_a)
      .def_prop_ro("missing", &ShmAllreduce::missing)
      .def_prop_ro("odd_rank", &ShmAllreduce::odd_rank)
      .def_prop_ro("odd_header", [](ShmAllreduce& b) {
        auto header = b.odd_header();
        return nb::bytes(reinterpret_cast<const char*>(header.data()), header.size());
      });
}

}  // namespace gradwire
