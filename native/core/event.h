// Event: what the application asks a wire for (SendRequest, ReceiveRequest), and the result.
#pragma once
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/failure.h"
#include "core/time.h"

namespace gradwire {

inline constexpr std::uint32_t kWhole = 1'000'000;  // fractions are in parts per million

struct ByteRange {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

// What the values of a tolerant transfer are worth: energies[i] is the energy (sum of squares, in any unit, may be an
// estimate) of the bytes [offset + i span, offset + (i + 1) span).
struct Importance {
  std::uint64_t offset = 0;
  std::uint64_t span = 1;
  std::vector<float> energies;
};

// `data` stays valid and unchanged until the `sent` event carries `token`, or until the request is detached. Streams
// use `token`, `data`, `size` and `tag` only.
struct SendRequest {
  std::uint64_t token = 0;
  const std::uint8_t* data = nullptr;
  std::uint64_t size = 0;
  std::uint64_t tag = 0;      // identifies the transfer to the receiver
  std::uint16_t element = 4;  // bytes that must arrive together
  std::uint16_t record = 0;   // not 0: bytes that must arrive in one packet (self-describing records)
  std::uint32_t tolerance = kWhole;
  std::vector<ByteRange> critical;
  std::uint64_t seed = 0;  // of the sending order
  std::optional<std::uint32_t> least =
      std::nullopt;                                 // the fraction that a deadline never goes below; none: see Settings
  std::shared_ptr<std::uint8_t[]> owned = nullptr;  // where `data` is after `detach`
  std::shared_ptr<const Importance> importance =
      nullptr;  // tolerant transfers only; none: all values are worth the same

  // Copies `ranges`, all that may still be sent: the caller's buffer is not read any more. Memory outside of them is
  // reserved and never touched.
  void detach(std::span<const ByteRange> ranges) {
    if (owned) return;
    std::shared_ptr<std::uint8_t[]> copy(new std::uint8_t[size]);
    for (const ByteRange& range : ranges) std::memcpy(copy.get() + range.offset, data + range.offset, range.length);
    data = copy.get();
    owned = std::move(copy);
  }
};

// `data` stays valid until the `received` event carries `token`; it is not written to after that.
struct ReceiveRequest {
  std::uint64_t token = 0;
  std::uint8_t* data = nullptr;
  std::uint64_t size = 0;
  std::uint64_t tag = 0;
  Time threshold = 0;  // LT and deadline, counted from the first data packet; 0: the learned ones
  Time deadline = 0;
};

// The values are on the wire: CLOSE of LTP, DONE of streams.
enum class CloseReason : std::uint8_t { complete = 1, threshold = 2, deadline = 3, refused = 4, cancelled = 5 };

enum class EventType : std::uint8_t { connected, sent, received, failed };

struct Event {
  EventType type = EventType::connected;
  std::uint32_t rank = 0;
  std::uint64_t token = 0;
  CloseReason reason = CloseReason::complete;  // of sent and received
  Failure failure = Failure::none;             // of failed, and of transfers that failed with their connection
  std::uint64_t size = 0;
  std::uint64_t arrived = 0;  // bytes at the receiver
  std::vector<ByteRange> missing;
  Time elapsed = 0;  // since the request (sent) or the first data packet (received)
};

}  // namespace gradwire
