// ReplayWindow: a sliding window of numbers: rejects replays, records what to acknowledge, distinguishes old transfers
// from new ones.
#pragma once
#include <array>
#include <bit>
#include <cstdint>

namespace gradwire::ltp {

template <std::size_t Bits>
class ReplayWindow {
  static_assert(std::has_single_bit(Bits) && Bits >= 64);

 public:
  // Numbers below the window count as contained: they are too old to be accepted.
  bool contains(std::uint64_t number) const {
    if (number >= end_) return false;
    if (number + Bits < end_) return true;
    return word(number) >> (number % 64) & 1;
  }
  // False when it was contained already.
  bool insert(std::uint64_t number) {
    if (contains(number)) return false;
    if (number >= end_) slide(number);
    word(number) |= std::uint64_t{1} << (number % 64);
    return true;
  }
  // The 64 numbers that share the word of `number`; bit k stands for number - number % 64 + k.
  std::uint64_t around(std::uint64_t number) const { return word(number); }
  // One past the largest number inserted.
  std::uint64_t end() const { return end_; }

 private:
  std::uint64_t& word(std::uint64_t number) { return words_[number / 64 % words_.size()]; }
  const std::uint64_t& word(std::uint64_t number) const { return words_[number / 64 % words_.size()]; }
  // Clears what leaves the window while its front moves to `number`. The window keeps one word of slack, so that a
  // word shared by the oldest and the newest numbers never mixes them.
  void slide(std::uint64_t number) {
    std::uint64_t from = (end_ + 63) / 64, to = number / 64;
    if (to >= from) {
      if (to - from >= words_.size()) from = to + 1 - words_.size();
      for (std::uint64_t w = from; w <= to; ++w) words_[w % words_.size()] = 0;
    }
    end_ = number + 1;
  }

  std::array<std::uint64_t, Bits / 64 * 2> words_{};
  std::uint64_t end_ = 0;
};

}  // namespace gradwire::ltp
