#include "ltp/send_order.h"

#include <cmath>
#include <numeric>

#include "ltp/frame.h"
#include "ltp/packet.h"

namespace gradwire::ltp {

bool is_weighted(const SendRequest& request) {
  constexpr std::size_t kMost = kBaseDatagram - kSealedOverhead - kWeightedHeader;
  return request.tolerance != kWhole && request.importance && request.importance->span > 0 &&
         std::max(request.element, request.record) <= kMost;
}

SendOrder::SendOrder(const SendRequest& request, std::uint64_t blocks, std::uint64_t block_bytes)
    : permutation_(blocks, request.seed) {
  if (is_weighted(request)) sum_energies(*request.importance, blocks, block_bytes);
  permuted_ = request.tolerance != kWhole && !banded();
  if (banded()) sort_into_bands(request.seed);
}

// A span's energy is spread evenly over the blocks that it overlaps. Bytes without a span have none.
void SendOrder::sum_energies(const Importance& importance, std::uint64_t blocks, std::uint64_t block_bytes) {
  std::vector<float> energies(blocks, 0.0f);
  double total = 0;
  for (std::size_t i = 0; i < importance.energies.size(); ++i) {
    float energy = importance.energies[i];
    std::uint64_t start = importance.offset + i * importance.span, end = start + importance.span;
    if (!std::isfinite(energy) || energy <= 0) continue;
    for (std::uint64_t block = start / block_bytes; block < blocks && block * block_bytes < end; ++block) {
      std::uint64_t from = std::max(start, block * block_bytes), to = std::min(end, (block + 1) * block_bytes);
      float part = energy * static_cast<float>(to - from) / static_cast<float>(importance.span);
      energies[block] += part;
      total += static_cast<double>(part);
    }
  }
  if (total <= 0 || !std::isfinite(total)) return;
  for (float& energy : energies) energy = static_cast<float>(static_cast<double>(energy) / total);
  shares_ = std::move(energies);
}

// A counting sort by band that begins at a drawn block, so that blocks of one band keep their order in memory.
void SendOrder::sort_into_bands(std::uint64_t seed) {
  std::uint64_t blocks = shares_.size(), start = Permutation(blocks, seed)(0);
  float largest = *std::max_element(shares_.begin(), shares_.end());
  auto band_of = [&](std::uint64_t block) {
    float share = shares_[block];
    int steps = share > 0 ? std::ilogb(largest) - std::ilogb(share) : static_cast<int>(kBands);
    return static_cast<std::size_t>(std::clamp(steps, 0, static_cast<int>(kBands) - 1));
  };
  for (std::uint64_t block = 0; block < blocks; ++block) ++band_starts_[band_of(block) + 1];
  std::partial_sum(band_starts_.begin(), band_starts_.end(), band_starts_.begin());
  auto next = band_starts_;
  blocks_by_position_.resize(blocks);
  positions_.resize(blocks);
  for (std::uint64_t i = 0; i < blocks; ++i) {
    std::uint64_t block = start + i < blocks ? start + i : start + i - blocks;
    std::uint64_t position = next[band_of(block)]++;
    blocks_by_position_[position] = static_cast<std::uint32_t>(block);
    positions_[block] = static_cast<std::uint32_t>(position);
  }
}

std::uint64_t SendOrder::more_important(std::uint64_t position) const {
  if (!banded() || position >= shares_.size()) return 0;
  return *std::prev(std::upper_bound(band_starts_.begin(), band_starts_.end() - 1, position));
}

}  // namespace gradwire::ltp
