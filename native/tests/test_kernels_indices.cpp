// The index coder: round trips, its bound, and a bounded random fuzz of the decoder under the sanitizers.
#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "kernels/indices.h"
#include "tests/check.h"

using namespace gradwire;

namespace {

std::vector<int32_t> random_set(std::mt19937& random, int64_t count, int64_t numel) {
  std::vector<int32_t> set;
  while (static_cast<int64_t>(set.size()) < count) {
    for (int64_t i = static_cast<int64_t>(set.size()); i < count; ++i)
      set.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(numel)));
    std::sort(set.begin(), set.end());
    set.erase(std::unique(set.begin(), set.end()), set.end());
  }
  return set;
}

// A heap block of exactly this size, so that the sanitizer reports a read past the end.
std::unique_ptr<uint8_t[]> exact(const uint8_t* data, int64_t size) {
  auto copy = std::make_unique<uint8_t[]>(static_cast<size_t>(size));
  if (size > 0) std::memcpy(copy.get(), data, static_cast<size_t>(size));
  return copy;
}

bool decodes(const uint8_t* data, int64_t size, int64_t count, int64_t numel, std::vector<int32_t>& found) {
  found.assign(static_cast<size_t>(count), -1);
  auto copy = exact(data, size);
  return unpack_indices(copy.get(), size, count, numel, found.data());
}

bool proper(const std::vector<int32_t>& set, int64_t numel) {
  for (size_t i = 0; i < set.size(); ++i)
    if (set[i] < 0 || set[i] >= numel || (i > 0 && set[i] <= set[i - 1])) return false;
  return true;
}

std::vector<uint8_t> round_trip(const std::vector<int32_t>& set, int64_t numel) {
  auto count = static_cast<int64_t>(set.size());
  int64_t bound = packed_bound(count, numel);
  auto out = std::make_unique<uint8_t[]>(static_cast<size_t>(bound));
  int64_t used = pack_indices(set.data(), count, numel, out.get());
  CHECK(used >= 0 && used <= bound);
  std::vector<int32_t> back;
  CHECK(decodes(out.get(), used, count, numel, back) && back == set);
  for (int64_t cut = std::max<int64_t>(0, used - 20); cut < used; ++cut)
    CHECK(!decodes(out.get(), cut, count, numel, back));
  return {out.get(), out.get() + used};
}

void fuzz(std::mt19937& random, std::vector<uint8_t> bytes, int64_t count, int64_t numel) {
  std::vector<int32_t> found;
  for (int round = 0; round < 30; ++round) {
    std::vector<uint8_t> bad = bytes;
    for (int change = 0; !bad.empty() && change < 3; ++change)
      bad[random() % bad.size()] = static_cast<uint8_t>(random());
    if (random() % 4 == 0) bad.resize(random() % (bad.size() + 9));
    if (random() % 8 == 0) std::fill(bad.begin() + (bad.empty() ? 0 : 1), bad.end(), random() % 2 ? 0 : 255);
    int64_t claimed = random() % 8 ? count : static_cast<int64_t>(random() % static_cast<uint64_t>(numel + 1)) % 5000;
    if (decodes(bad.data(), static_cast<int64_t>(bad.size()), claimed, numel, found)) CHECK(proper(found, numel));
  }
}

}  // namespace

int main() {
  std::mt19937 random(2);
  for (int64_t numel :
       {int64_t{1}, int64_t{2}, int64_t{9}, int64_t{64}, int64_t{1000}, int64_t{100'000}, int64_t{INT32_MAX}})
    for (int round = 0; round < 40; ++round) {
      int64_t count = static_cast<int64_t>(random() % static_cast<uint64_t>(std::min<int64_t>(numel, 3000) + 1));
      fuzz(random, round_trip(random_set(random, numel <= 1000 ? std::min(count, numel / 2) : count, numel), numel),
           count, numel);
    }
  // Long runs of zeros at every bit offset: a cluster, then a far jump.
  for (int64_t cluster = 1; cluster < 400; ++cluster)
    for (int32_t jump : {60, 5'000, 99'000}) {
      std::vector<int32_t> set;
      for (int32_t i = 0; i < cluster; ++i) set.push_back(i * 3 % 2 + i * 2);
      for (int32_t i = 0; i < 9; ++i) set.push_back(static_cast<int32_t>(cluster) * 2 + jump + i);
      round_trip(set, 100'000);
    }
  const int32_t unordered[] = {5, 4}, outside[] = {1, 10}, negative[] = {-3, 4};
  uint8_t room[64];
  for (const int32_t* bad : {unordered, outside, negative}) CHECK(pack_indices(bad, 2, 10, room) == -1);
  std::vector<int32_t> found(4);
  CHECK(!unpack_indices(room, 8, -1, 10, found.data()));
  CHECK(!unpack_indices(room, 8, 11, 10, found.data()));
  CHECK(!unpack_indices(room, 8, 2, int64_t{1} << 40, found.data()));
  return gradwire::test::finish();
}
