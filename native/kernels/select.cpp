#include "kernels/select.h"

#include <cstring>
#include <memory>

#include "kernels/parallel.h"
#include "kernels/select_ops.h"

namespace gradwire {
namespace {

using SelectRange = Selected (*)(const Gradient&, int64_t, int64_t, uint32_t, const Pairs&);

SelectRange select_range() {
#if defined(GRADWIRE_X86)
  if (best_isa() == Isa::avx512) return select_avx512;
  if (best_isa() == Isa::avx2) return select_avx2;
#endif
  return select_scalar;
}

// The result of one of several threads, before it is known how much of it fits.
struct Found {
  std::unique_ptr<int32_t[]> indices;
  std::unique_ptr<float[]> values;
  Selected selected;
};

// Copies what fits after the first `used` entries; the rest is restored in r as if it had not been selected.
int64_t append(const Found& found, int64_t used, const Gradient& in, const Pairs& out) {
  int64_t fits = std::min(found.selected.count, out.capacity - used);
  std::memcpy(out.indices + used, found.indices.get(), static_cast<size_t>(fits) * sizeof(int32_t));
  std::memcpy(out.values + used, found.values.get(), static_cast<size_t>(fits) * sizeof(float));
  for (int64_t i = fits; in.r && i < found.selected.count; ++i)
    if (is_finite(found.values[i])) in.r[found.indices[i]] = found.values[i];
  return fits;
}

Selected select_in_parallel(const Gradient& in, uint32_t limit, const Pairs& out, int parts) {
  auto found = std::make_unique<Found[]>(static_cast<size_t>(parts));
  Selected first;
  in_parallel(parts, in.n, 16, [&](int part, int64_t begin, int64_t end) {
    if (part == 0) {
      first = select_range()(in, begin, end, limit, out);
      return;
    }
    auto room = static_cast<size_t>(std::min(out.capacity, end - begin));
    Found& mine = found[static_cast<size_t>(part)];
    mine.indices.reset(new int32_t[room]);  // not make_unique: unused pages must not be written
    mine.values.reset(new float[room]);
    mine.selected =
        select_range()(in, begin, end, limit, {mine.indices.get(), mine.values.get(), static_cast<int64_t>(room)});
  });
  for (int part = 1; part < parts; ++part) {
    first.count += append(found[static_cast<size_t>(part)], first.count, in, out);
    first.nonfinite += found[static_cast<size_t>(part)].selected.nonfinite;
  }
  return first;
}

}  // namespace

Selected select_scalar(const Gradient& in, int64_t begin, int64_t end, uint32_t limit, const Pairs& out) {
  Selected found;
  for (int64_t i = begin; i < end; ++i) {
    float a = compensated(in.g, in.r, i);
    bool wild = !is_finite(a);
    bool taken = (magnitude(a) >= limit || wild) && found.count < out.capacity;
    found.nonfinite += wild;
    if (taken) {
      out.indices[found.count] = static_cast<int32_t>(i);
      out.values[found.count++] = a;
    }
    if (in.r && !wild) in.r[i] = taken ? 0.0f : a;
  }
  return found;
}

Selected select(const Gradient& in, float threshold, const Pairs& out, int threads) {
  uint32_t limit = threshold > 0 ? bits_of(threshold) : 0;
  int parts = useful_threads(threads, in.n);
  if (parts > 1) return select_in_parallel(in, limit, out, parts);
  return select_range()(in, 0, in.n, limit, out);
}

}  // namespace gradwire
