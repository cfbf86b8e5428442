// Requests as several tests make them.
#pragma once
#include <cstdint>
#include <vector>

#include "core/event.h"

namespace gradwire::test {

// `bytes` must outlive the transfer.
inline SendRequest sending(const std::vector<std::uint8_t>& bytes, std::uint64_t tag, std::uint64_t token = 0) {
  SendRequest request;
  request.token = token;
  request.data = bytes.data();
  request.size = bytes.size();
  request.tag = tag;
  return request;
}

}  // namespace gradwire::test
