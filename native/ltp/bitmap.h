// Bitmap: a fixed-size set of grain numbers with operations on runs. Allocated once, when a transfer opens.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

namespace gradwire::ltp {

class Bitmap {
 public:
  Bitmap() = default;
  explicit Bitmap(std::uint64_t size) : words_((size + 63) / 64), size_(size) {}

  std::uint64_t size() const { return size_; }
  std::uint64_t count() const { return count_; }
  bool test(std::uint64_t i) const { return words_[i / 64] >> (i % 64) & 1; }
  // Both return how many bits they changed.
  std::uint64_t set(std::uint64_t first, std::uint64_t count) {
    std::uint64_t changed = 0;
    each_word(first, count, [&](std::uint64_t& word, std::uint64_t mask) {
      changed += static_cast<std::uint64_t>(std::popcount(~word & mask));
      word |= mask;
    });
    count_ += changed;
    return changed;
  }
  std::uint64_t clear(std::uint64_t first, std::uint64_t count) {
    std::uint64_t changed = 0;
    each_word(first, count, [&](std::uint64_t& word, std::uint64_t mask) {
      changed += static_cast<std::uint64_t>(std::popcount(word & mask));
      word &= ~mask;
    });
    count_ -= changed;
    return changed;
  }
  // The first set (or clear) bit at or after `from`; size() when there is none.
  std::uint64_t next_set(std::uint64_t from) const { return next<false>(from); }
  std::uint64_t next_clear(std::uint64_t from) const { return next<true>(from); }

 private:
  template <class F>
  void each_word(std::uint64_t first, std::uint64_t count, F change) {
    for (std::uint64_t at = first, end = first + count; at < end;) {
      std::uint64_t take = std::min<std::uint64_t>(64 - at % 64, end - at);
      std::uint64_t mask = (take == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << take) - 1) << (at % 64);
      change(words_[at / 64], mask);
      at += take;
    }
  }
  template <bool Inverted>
  std::uint64_t next(std::uint64_t from) const {
    if (from >= size_) return size_;
    std::uint64_t w = from / 64;
    std::uint64_t word = (Inverted ? ~words_[w] : words_[w]) & (~std::uint64_t{0} << (from % 64));
    while (!word) {
      if (++w >= words_.size()) return size_;
      word = Inverted ? ~words_[w] : words_[w];
    }
    std::uint64_t found = w * 64 + static_cast<std::uint64_t>(std::countr_zero(word));
    return found < size_ ? found : size_;
  }

  std::vector<std::uint64_t> words_;
  std::uint64_t size_ = 0;
  std::uint64_t count_ = 0;
};

}  // namespace gradwire::ltp
