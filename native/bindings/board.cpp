#include "board/board.h"

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

using board::Board;

Time after(double seconds) { return monotonic_now() + nanoseconds(seconds); }

const std::uint8_t* header_of(const nb::bytes& header) {
  if (header.size() < board::kHeader) throw std::invalid_argument("the header of a call must have at least 56 bytes");
  return static_cast<const std::uint8_t*>(header.data());
}

// The caller owns the descriptor.
int make(std::size_t ranks, std::size_t slot) {
  int file = ::fcntl(board::make_memory({ranks, slot}).get(), F_DUPFD_CLOEXEC, 0);
  if (file < 0) throw std::system_error(errno, std::generic_category(), "fcntl");
  return file;
}

void bind_values(nb::module_& m) {
  nb::enum_<board::Status>(m, "BoardStatus")
      .value("waiting", board::Status::waiting)
      .value("done", board::Status::done)
      .value("differs", board::Status::differs)
      .value("fold", board::Status::fold);
  nb::enum_<board::Kind>(m, "BoardKind")
      .value("caller", board::Kind::caller)
      .value("float32", board::Kind::float32)
      .value("float64", board::Kind::float64)
      .value("int8", board::Kind::int8)
      .value("int16", board::Kind::int16)
      .value("int32", board::Kind::int32)
      .value("int64", board::Kind::int64);
  nb::class_<board::Fold>(m, "BoardFold",
                          "What the caller adds up: `size` bytes of the data, and where they lie in the slots.")
      .def_ro("phase", &board::Fold::phase)
      .def_ro("offset", &board::Fold::offset)
      .def_ro("place", &board::Fold::place)
      .def_ro("size", &board::Fold::bytes);
}

}  // namespace

void bind_board(nb::module_& m) {
  bind_values(m);
  nb::class_<Board>(m, "Board", "Sums between the ranks of one host, through memory that all of them see.")
      .def_static("make", &make, "ranks"_a, "slot"_a)
      .def(
          "__init__",
          [](Board* self, int file, std::size_t ranks, std::size_t slot, std::size_t rank, double spin) {
            new (self) Board(file, {ranks, slot}, rank, nanoseconds(spin));
          },
          "file"_a, "ranks"_a, "slot"_a, "rank"_a, "spin"_a)
      .def(
          "announce",
          [](Board& b, std::uint64_t number, std::uint64_t sums, const nb::bytes& header) {
            b.announce(number, sums, header_of(header));
          },
          "number"_a, "sums"_a, "header"_a)
      .def(
          "begin",
          [](Board& b, std::uint64_t number, const nb::bytes& header, std::uintptr_t data, std::size_t bytes,
             std::size_t item, board::Kind kind, bool sharded) {
            b.begin(number, header_of(header), {reinterpret_cast<std::uint8_t*>(data), bytes, item, kind, sharded});
          },
          "number"_a, "header"_a, "data"_a, "size"_a, "item"_a, "kind"_a, "sharded"_a)
      .def(
          "step", [](Board& b, double timeout) { return b.step(after(timeout)); }, "timeout"_a,
          nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("folding", &Board::folding)
      .def("folded", &Board::folded)
      .def(
          "slot",
          [](Board& b, std::uint64_t phase, std::size_t rank) {
            return reinterpret_cast<std::uintptr_t>(b.slot(phase, rank));
          },
          "phase"_a, "rank"_a)
      .def_prop_ro("missing", &Board::missing)
      .def_prop_ro("odd_rank", &Board::odd_rank)
      .def_prop_ro("odd_header", [](Board& b) {
        auto header = b.odd_header();
        return nb::bytes(reinterpret_cast<const char*>(header.data()), header.size());
      });
}

}  // namespace gradwire
