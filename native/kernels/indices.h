// Strictly increasing indices below numel in few bytes: Rice-coded gaps, or a bitmap when that is smaller.
//
// The first byte of a set says which. Rice (after Golomb, run lengths of rare events): each gap g to the next index is
// g >> b zeros, a one, then the low b bits of g; bits fill bytes from the lowest. b follows from count and numel,
// which both sides know. Nothing at all is written when the set is empty or full. Padding bits are zero.
#pragma once
#include <cstddef>
#include <cstdint>

namespace gradwire {

// No set of this size needs more bytes than this.
int64_t packed_bound(int64_t count, int64_t numel);

// Bytes written to `out` (at most packed_bound), or -1 if the indices are not strictly increasing below numel.
int64_t pack_indices(const int32_t* indices, int64_t count, int64_t numel, uint8_t* out);

// Reads exactly `size` bytes of anything. False unless they are what pack_indices writes for some set of `count`
// indices below numel; never reads or writes outside. `indices` may be partly written on failure.
bool unpack_indices(const uint8_t* in, int64_t size, int64_t count, int64_t numel, int32_t* indices);

}  // namespace gradwire
