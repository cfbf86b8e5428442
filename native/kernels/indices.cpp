#include "kernels/indices.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace gradwire {
namespace {

constexpr uint8_t kRice = 0, kBitmap = 1;
constexpr int kWindow = 57;   // bits that one unaligned 8-byte read always contains
constexpr int kLongest = 49;  // bits put at once: with up to 7 waiting they stay below a word, so no shift is by 64

int64_t bytes_of(int64_t bits) { return (bits + 7) / 8; }
bool trivial(int64_t count, int64_t numel) { return count <= 0 || count >= numel; }

// One more low bit pays while (1 - p)^(2^b) > 0.618, the golden ratio's inverse, for geometric gaps of density p;
// that is 2^b * p < 0.481. Integers, so that every machine agrees.
int rice_bits(int64_t count, int64_t numel) {
  int b = 0;
  while (b < 31 && (static_cast<__int128>(count) << b) * 1000 < static_cast<__int128>(numel) * 481) ++b;
  return b;
}

uint64_t load(const uint8_t* from, int64_t available) {
  uint64_t word = 0;
  std::memcpy(&word, from, static_cast<size_t>(std::min<int64_t>(8, available)));
  if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
  return word;
}

class BitWriter {
 public:
  BitWriter(uint8_t* out, int64_t size) : out_(out), size_(size) {}

  void put(uint64_t value, int length) {  // length <= kLongest
    word_ |= value << filled_;
    filled_ += length;
    if (size_ - at_ >= 8) {
      uint64_t w = word_;
      if constexpr (std::endian::native == std::endian::big) w = __builtin_bswap64(w);
      std::memcpy(out_ + at_, &w, 8);
      at_ += filled_ >> 3;
      word_ >>= filled_ & ~7;
      filled_ &= 7;
    } else {
      while (filled_ >= 8) byte();
    }
  }
  void zeros(int64_t length) {
    for (; length > kLongest; length -= kLongest) put(0, kLongest);
    put(0, static_cast<int>(length));
  }
  void finish() {
    if (filled_ > 0) byte();
  }

 private:
  void byte() {
    out_[at_++] = static_cast<uint8_t>(word_);
    word_ >>= 8;
    filled_ -= 8;
  }
  uint8_t* out_;
  int64_t size_, at_ = 0;
  uint64_t word_ = 0;
  int filled_ = 0;
};

// Total bits of the Rice form, or -1 for a bad set.
int64_t rice_size(const int32_t* indices, int64_t count, int64_t numel, int b) {
  int64_t previous = -1, quotients = 0;
  for (int64_t i = 0; i < count; ++i) {
    int64_t gap = indices[i] - previous - 1;
    if (gap < 0) return -1;
    quotients += gap >> b;
    previous = indices[i];
  }
  return previous < numel ? quotients + count * (b + 1) : -1;
}

void write_rice(const int32_t* indices, int64_t count, int b, BitWriter writer) {
  const uint64_t low = (uint64_t{1} << b) - 1;
  int64_t previous = -1;
  for (int64_t i = 0; i < count; ++i) {
    auto gap = static_cast<uint64_t>(indices[i] - previous - 1);
    auto quotient = static_cast<int64_t>(gap >> b);
    uint64_t tail = (gap & low) << 1 | 1;
    if (quotient + b + 1 <= kLongest) {
      writer.put(tail << quotient, static_cast<int>(quotient) + b + 1);
    } else {
      writer.zeros(quotient);
      writer.put(tail, b + 1);
    }
    previous = indices[i];
  }
  writer.finish();
}

class BitReader {
 public:
  BitReader(const uint8_t* in, int64_t size) : in_(in), bits_(size * 8) {}

  // The bits from here on, zeros behind the end.
  uint64_t peek() const { return load(in_ + (at_ >> 3), (bits_ >> 3) - (at_ >> 3)) >> (at_ & 7); }
  bool skip(int64_t length) {
    at_ += length;
    return at_ <= bits_;
  }
  bool ended() const { return bits_ - at_ < 8 && (at_ == bits_ || peek() == 0); }

  // Zeros before the next one, which is passed too; more than `most` is invalid.
  bool unary(int64_t most, int64_t& zeros) {
    zeros = 0;
    for (;;) {
      uint64_t window = at_ < bits_ ? peek() : 0;
      int run = window ? std::countr_zero(window) : 56;
      zeros += run;
      if (zeros > most || !skip(run + (window ? 1 : 0)) || (!window && at_ >= bits_)) return false;
      if (window) return true;
    }
  }

 private:
  const uint8_t* in_;
  int64_t bits_, at_ = 0;
};

bool read_rice(BitReader reader, int64_t count, int64_t numel, int b, int32_t* indices) {
  const uint64_t low = (uint64_t{1} << b) - 1;
  const int64_t most = numel >> b;
  int64_t previous = -1;
  for (int64_t i = 0; i < count; ++i) {
    int64_t quotient;
    uint64_t window = reader.peek();
    if (window && std::countr_zero(window) + 1 + b <= kWindow) {  // the whole code at once
      quotient = std::countr_zero(window);
      window >>= quotient + 1;
      if (quotient > most || !reader.skip(quotient + 1 + b)) return false;
    } else {
      if (!reader.unary(most, quotient)) return false;
      window = reader.peek();
      if (!reader.skip(b)) return false;
    }
    previous += (quotient << b | static_cast<int64_t>(window & low)) + 1;
    if (previous >= numel) return false;
    indices[i] = static_cast<int32_t>(previous);
  }
  return reader.ended();
}

bool read_bitmap(const uint8_t* in, int64_t size, int64_t count, int64_t numel, int32_t* indices) {
  if (size != bytes_of(numel)) return false;
  int64_t found = 0;
  for (int64_t at = 0; at < size; at += 8) {
    for (uint64_t word = load(in + at, size - at); word; word &= word - 1) {
      int64_t index = at * 8 + std::countr_zero(word);
      if (found == count || index >= numel) return false;
      indices[found++] = static_cast<int32_t>(index);
    }
  }
  return found == count;
}

}  // namespace

int64_t packed_bound(int64_t count, int64_t numel) {
  if (trivial(count, numel)) return 0;
  int b = rice_bits(count, numel);
  // The gaps add up to at most numel - count, so their quotients to at most that >> b.
  return 1 + std::min(bytes_of(count * (b + 1) + ((numel - count) >> b)), bytes_of(numel));
}

int64_t pack_indices(const int32_t* indices, int64_t count, int64_t numel, uint8_t* out) {
  int b = count > 0 ? rice_bits(count, numel) : 0;
  int64_t bits = rice_size(indices, count, numel, b);
  if (bits < 0) return -1;
  if (trivial(count, numel)) return 0;
  if (bytes_of(bits) <= bytes_of(numel)) {
    out[0] = kRice;
    write_rice(indices, count, b, BitWriter(out + 1, bytes_of(bits)));
    return 1 + bytes_of(bits);
  }
  out[0] = kBitmap;
  std::memset(out + 1, 0, static_cast<size_t>(bytes_of(numel)));
  for (int64_t i = 0; i < count; ++i) out[1 + indices[i] / 8] |= static_cast<uint8_t>(1u << (indices[i] % 8));
  return 1 + bytes_of(numel);
}

bool unpack_indices(const uint8_t* in, int64_t size, int64_t count, int64_t numel, int32_t* indices) {
  if (count < 0 || count > numel || numel > INT32_MAX) return false;
  if (trivial(count, numel)) {
    for (int64_t i = 0; i < count; ++i) indices[i] = static_cast<int32_t>(i);
    return size == 0;
  }
  if (size < 1) return false;
  if (in[0] == kBitmap) return read_bitmap(in + 1, size - 1, count, numel, indices);
  return in[0] == kRice && read_rice(BitReader(in + 1, size - 1), count, numel, rice_bits(count, numel), indices);
}

}  // namespace gradwire
