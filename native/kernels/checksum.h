// CRC32C (Castagnoli, as iSCSI and ext4 use it): catches every burst up to 32 bits and any few flipped bits.
#pragma once
#include <cstdint>

namespace gradwire {

uint32_t crc32c(const uint8_t* data, int64_t n);

}  // namespace gradwire
