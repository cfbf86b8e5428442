// SendOrder: the order in which the blocks of a transfer are sent for the first time, and each block's share of its
// energy.
//   reliable                 one after another: memory is read in order
//   tolerant, with energies  in bands of falling energy, one after another inside a band from a block that the seed
//                            draws: a transfer closed early has lost the least, and not the same layer every time
//   tolerant, without        permuted: neither a burst of losses nor an early close hits one layer
#pragma once
#include <algorithm>
#include <array>
#include <vector>

#include "core/event.h"
#include "ltp/permute.h"

namespace gradwire::ltp {

// Whether its data is sent as WEIGHTED: where the units that must stay together leave room for the longer header.
bool is_weighted(const SendRequest& request);

class SendOrder {
 public:
  // A block of band b has more than 2^-(b+1) of the largest block's energy; the last band has all that is less.
  static constexpr std::size_t kBands = 16;

  SendOrder(const SendRequest& request, std::uint64_t blocks, std::uint64_t block_bytes);

  // The block that is sent at `position`.
  std::uint64_t block(std::uint64_t position) const {
    return banded() ? blocks_by_position_[position] : permuted_ ? permutation_(position) : position;
  }
  // Lost blocks of a lower rank are sent again first. Without energies all are worth the same, and the rank is the
  // block's number.
  std::uint64_t rank(std::uint64_t block) const { return banded() ? positions_[block] : block; }
  std::uint64_t block_of_rank(std::uint64_t rank) const { return banded() ? blocks_by_position_[rank] : rank; }
  // Ranks below this belong to bands of more energy than that of the block at `position`.
  std::uint64_t more_important(std::uint64_t position) const;
  bool banded() const { return !shares_.empty(); }
  // Of the transfer's energy; only with energies.
  double share(std::uint64_t block) const { return shares_[block]; }

 private:
  void sum_energies(const Importance& importance, std::uint64_t blocks, std::uint64_t block_bytes);
  void sort_into_bands(std::uint64_t seed);

  bool permuted_ = false;
  Permutation permutation_;
  std::vector<float> shares_;
  std::vector<std::uint32_t> blocks_by_position_, positions_;
  std::array<std::uint64_t, kBands + 1> band_starts_{};
};

}  // namespace gradwire::ltp
