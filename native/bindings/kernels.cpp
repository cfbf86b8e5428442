// Tensors arrive as (address, number of elements); the Python side has checked dtype, device, layout and sizes.
// A residual at address 0 means no feedback.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <stdexcept>

#include "bindings/bindings.h"
#include "kernels/bfloat.h"
#include "kernels/checksum.h"
#include "kernels/cpu.h"
#include "kernels/exact.h"
#include "kernels/factors.h"
#include "kernels/half.h"
#include "kernels/indices.h"
#include "kernels/quant.h"
#include "kernels/select.h"
#include "kernels/sparse.h"
#include "kernels/threshold.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace gradwire {
namespace {

using Address = uintptr_t;
using Released = nb::call_guard<nb::gil_scoped_release>;
using Optional64 = std::optional<uint64_t>;

template <typename T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

Half half_kind(bool bf16) { return bf16 ? Half::bf16 : Half::fp16; }

Isa isa_named(const std::string& name) {
  for (Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512})
    if (name == isa_name(isa)) return isa;
  throw std::invalid_argument("isa: '" + name + "' is not one of scalar, avx2, avx512");
}

void bind_dense(nb::module_& m) {
  m.def(
      "encode_half",
      [](bool bf16, Address g, Address r, Address out, int64_t n, int threads) {
        return encode_half(half_kind(bf16), at<float>(g), at<float>(r), at<uint16_t>(out), n, threads);
      },
      "bf16"_a, "g"_a, "r"_a, "out"_a, "n"_a, "threads"_a, Released());
  m.def(
      "decode_half",
      [](bool bf16, Address src, Address out, int64_t n, float weight, bool add, int threads) {
        decode_half(half_kind(bf16), at<uint16_t>(src), at<float>(out), n, weight, add, threads);
      },
      "bf16"_a, "src"_a, "out"_a, "n"_a, "weight"_a, "add"_a, "threads"_a, Released());
  m.def(
      "round_to_bfloat",
      [](Address values, Address out, int64_t n, uint64_t seed) {
        round_to_bfloat(at<float>(values), at<uint16_t>(out), n, seed);
      },
      "values"_a, "out"_a, "n"_a, "seed"_a, Released());
  m.def(
      "encode_int8",
      [](Address g, Address r, Address q, Address scales, int64_t n, Optional64 seed, int threads) {
        return encode_int8({at<float>(g), at<float>(r), n, seed, threads}, at<int8_t>(q), at<float>(scales));
      },
      "g"_a, "r"_a, "q"_a, "scales"_a, "n"_a, "seed"_a.none(), "threads"_a, Released());
  m.def(
      "encode_int4",
      [](Address g, Address r, Address q, Address scales, int64_t n, Optional64 seed, int threads) {
        return encode_int4({at<float>(g), at<float>(r), n, seed, threads}, at<uint8_t>(q), at<float>(scales));
      },
      "g"_a, "r"_a, "q"_a, "scales"_a, "n"_a, "seed"_a.none(), "threads"_a, Released());
  m.def(
      "encode_int2",
      [](Address g, Address r, Address q, Address scales, int64_t n, Optional64 seed, int threads) {
        return encode_int2({at<float>(g), at<float>(r), n, seed, threads}, at<uint8_t>(q), at<float>(scales));
      },
      "g"_a, "r"_a, "q"_a, "scales"_a, "n"_a, "seed"_a.none(), "threads"_a, Released());
  m.def(
      "decode_int8",
      [](Address q, Address scales, Address out, int64_t n, float weight, bool add, int threads) {
        decode_int8(at<int8_t>(q), at<float>(scales), at<float>(out), n, weight, add, threads);
      },
      "q"_a, "scales"_a, "out"_a, "n"_a, "weight"_a, "add"_a, "threads"_a, Released());
  m.def(
      "decode_int4",
      [](Address q, Address scales, Address out, int64_t n, float weight, bool add, int threads) {
        decode_int4(at<uint8_t>(q), at<float>(scales), at<float>(out), n, weight, add, threads);
      },
      "q"_a, "scales"_a, "out"_a, "n"_a, "weight"_a, "add"_a, "threads"_a, Released());
  m.def(
      "decode_int2",
      [](Address q, Address scales, Address out, int64_t n, float weight, bool add, int threads) {
        decode_int2(at<uint8_t>(q), at<float>(scales), at<float>(out), n, weight, add, threads);
      },
      "q"_a, "scales"_a, "out"_a, "n"_a, "weight"_a, "add"_a, "threads"_a, Released());
}

void bind_sparse(nb::module_& m) {
  nb::class_<Selected>(m, "Selected", "How many pairs were written, and how many elements were not finite.")
      .def_ro("count", &Selected::count)
      .def_ro("nonfinite", &Selected::nonfinite);
  m.def(
      "threshold",
      [](Address g, Address r, int64_t n, int64_t k) { return threshold({at<float>(g), at<float>(r), n}, k); }, "g"_a,
      "r"_a, "n"_a, "k"_a, Released());
  m.def(
      "select",
      [](Address g, Address r, int64_t n, float least, Address indices, Address values, int64_t capacity, int threads) {
        return select({at<float>(g), at<float>(r), n}, least, {at<int32_t>(indices), at<float>(values), capacity},
                      threads);
      },
      "g"_a, "r"_a, "n"_a, "threshold"_a, "indices"_a, "values"_a, "capacity"_a, "threads"_a, Released());
  m.def(
      "select_exact",
      [](Address g, Address r, int64_t n, int64_t k, Address indices, Address values, int64_t capacity, int threads) {
        return select_exact({at<float>(g), at<float>(r), n}, k, {at<int32_t>(indices), at<float>(values), capacity},
                            threads);
      },
      "g"_a, "r"_a, "n"_a, "k"_a, "indices"_a, "values"_a, "capacity"_a, "threads"_a, Released());
  m.def(
      "select_largest",
      [](Address g, Address r, int64_t n, int64_t k, Address indices, Address values, int64_t capacity, int threads) {
        return select_largest({at<float>(g), at<float>(r), n}, k, {at<int32_t>(indices), at<float>(values), capacity},
                              threads);
      },
      "g"_a, "r"_a, "n"_a, "k"_a, "indices"_a, "values"_a, "capacity"_a, "threads"_a, Released());
  m.def(
      "gather",
      [](Address g, Address r, int64_t n, Address indices, Address values, int64_t count) {
        int64_t nonfinite = 0;
        bool ok = gather({at<float>(g), at<float>(r), n}, at<int32_t>(indices), at<float>(values), count, &nonfinite);
        return ok ? nonfinite : -1;
      },
      "g"_a, "r"_a, "n"_a, "indices"_a, "values"_a, "count"_a, Released(), "-1: an index is out of range.");
  m.def(
      "accumulate",
      [](Address g, Address r, int64_t n, int threads) { return accumulate(at<float>(g), at<float>(r), n, threads); },
      "g"_a, "r"_a, "n"_a, "threads"_a, Released());
  m.def(
      "add", [](Address g, Address r, int64_t n, int threads) { add(at<float>(g), at<float>(r), n, threads); }, "g"_a,
      "r"_a, "n"_a, "threads"_a, Released(), "Plain r += g, the floor benchmarks compare with.");
  m.def(
      "scatter_add",
      [](Address indices, Address values, int64_t count, Address out, int64_t n, float weight) {
        return scatter_add(at<int32_t>(indices), at<float>(values), count, at<float>(out), n, weight);
      },
      "indices"_a, "values"_a, "count"_a, "out"_a, "n"_a, "weight"_a, Released(), "False: an index is out of range.");
}

void bind_factors(nb::module_& m) {
  m.def(
      "orthonormalise", [](Address p, int64_t rows, int64_t rank) { orthonormalise(at<float>(p), rows, rank); }, "p"_a,
      "rows"_a, "rank"_a, Released());
  m.def(
      "multiply_factors",
      [](Address p, Address q, Address out, int64_t rows, int64_t columns, int64_t rank) {
        multiply_factors(at<float>(p), at<float>(q), at<float>(out), rows, columns, rank);
      },
      "p"_a, "q"_a, "out"_a, "rows"_a, "columns"_a, "rank"_a, Released());
}

void bind_bytes(nb::module_& m) {
  m.def("packed_bound", packed_bound, "count"_a, "numel"_a);
  m.def(
      "pack_indices",
      [](Address indices, int64_t count, int64_t numel, Address out) {
        return pack_indices(at<int32_t>(indices), count, numel, at<uint8_t>(out));
      },
      "indices"_a, "count"_a, "numel"_a, "out"_a, Released(), "-1: the indices do not strictly increase below numel.");
  m.def(
      "unpack_indices",
      [](Address data, int64_t size, int64_t count, int64_t numel, Address indices) {
        return unpack_indices(at<uint8_t>(data), size, count, numel, at<int32_t>(indices));
      },
      "data"_a, "size"_a, "count"_a, "numel"_a, "indices"_a, Released(), "False: the bytes are not a packed set.");
  m.def("crc32c", [](Address data, int64_t n) { return crc32c(at<uint8_t>(data), n); }, "data"_a, "n"_a, Released());
}

}  // namespace

void bind_kernels(nb::module_& m) {
  m.def("isa", [] { return isa_name(best_isa()); }, "The instruction set the kernels run on.");
  m.def(
      "set_isa", [](const std::string& name) { return isa_name(set_isa(isa_named(name))); }, "name"_a,
      "For tests and benchmarks: run on this set, or the best below it that the machine has; says which.");
  bind_dense(m);
  bind_sparse(m);
  bind_factors(m);
  bind_bytes(m);
}

}  // namespace gradwire
