// Reader and Writer: big-endian numbers with bounds checks. A read or write past the end sets `ok` to false and does
// nothing; callers check once at the end. Only here are wire bytes converted to numbers.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace gradwire {

using Bytes = std::span<const std::uint8_t>;
using MutableBytes = std::span<std::uint8_t>;

class Reader {
 public:
  explicit Reader(Bytes bytes) : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  std::uint8_t u8() { return static_cast<std::uint8_t>(number<1>()); }
  std::uint16_t u16() { return static_cast<std::uint16_t>(number<2>()); }
  std::uint32_t u32() { return static_cast<std::uint32_t>(number<4>()); }
  std::uint64_t u48() { return number<6>(); }
  std::uint64_t u64() { return number<8>(); }

  Bytes bytes(std::size_t count) {
    if (count > left()) {
      fail();
      return {};
    }
    Bytes taken(at_, count);
    at_ += count;
    return taken;
  }
  void copy(MutableBytes out) {
    Bytes taken = bytes(out.size());
    if (ok_ && !out.empty()) std::memcpy(out.data(), taken.data(), out.size());
  }
  Bytes rest() const { return {at_, left()}; }
  std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }
  bool ok() const { return ok_; }
  void fail() {
    ok_ = false;
    at_ = end_;
  }

 private:
  template <int N>
  std::uint64_t number() {
    if (left() < N) {
      fail();
      return 0;
    }
    std::uint64_t value = 0;
    for (int i = 0; i < N; ++i) value = value << 8 | at_[i];
    at_ += N;
    return value;
  }

  const std::uint8_t* at_;
  const std::uint8_t* end_;
  bool ok_ = true;
};

class Writer {
 public:
  explicit Writer(MutableBytes bytes) : begin_(bytes.data()), at_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  void u8(std::uint64_t value) { number<1>(value); }
  void u16(std::uint64_t value) { number<2>(value); }
  void u32(std::uint64_t value) { number<4>(value); }
  void u48(std::uint64_t value) { number<6>(value); }
  void u64(std::uint64_t value) { number<8>(value); }
  void bytes(Bytes from) {
    if (MutableBytes to = space(from.size()); ok_ && !from.empty()) std::memcpy(to.data(), from.data(), from.size());
  }
  void zeros(std::size_t count) {
    if (MutableBytes to = space(count); ok_ && count) std::memset(to.data(), 0, count);
  }
  // Space that the caller fills itself.
  MutableBytes space(std::size_t count) {
    if (count > left()) {
      ok_ = false;
      return {};
    }
    MutableBytes taken(at_, count);
    at_ += count;
    return taken;
  }
  std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }
  std::size_t size() const { return static_cast<std::size_t>(at_ - begin_); }
  Bytes written() const { return {begin_, size()}; }
  bool ok() const { return ok_; }

 private:
  template <int N>
  void number(std::uint64_t value) {
    MutableBytes to = space(N);
    if (!ok_) return;
    for (int i = 0; i < N; ++i) to[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(value >> (8 * (N - 1 - i)));
  }

  std::uint8_t* begin_;
  std::uint8_t* at_;
  std::uint8_t* end_;
  bool ok_ = true;
};

}  // namespace gradwire
