// The nouns at the protocol's upper edge: what is asked for, and what came of it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ltp/frame.h"
#include "ltp/time.h"

namespace gradwire::ltp {

// What a transfer sent ahead of its receive costs of the credit; the floor bounds how many small ones wait unclaimed.
constexpr std::uint64_t credit_cost(std::uint64_t size) { return size < 1024 ? 1024 : size; }

struct ByteRange {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

// `data` stays valid and unchanged until the `sent` event carries `token`.
struct SendRequest {
  std::uint64_t token = 0;
  const std::uint8_t* data = nullptr;
  std::uint64_t size = 0;
  std::uint64_t tag = 0;         // names the transfer to the receiver
  std::uint16_t element = 4;     // bytes that must arrive together
  std::uint16_t record = 0;      // not 0: bytes that must arrive in one packet (self-describing records)
  std::uint32_t tolerance = kWhole;
  std::vector<ByteRange> critical;
  std::uint64_t seed = 0;  // of the sending order
  std::optional<std::uint32_t> least = std::nullopt;  // the fraction that no deadline undercuts; none: by the settings
};

// `data` stays valid until the `received` event carries `token`; nothing is written to it afterwards.
struct ReceiveRequest {
  std::uint64_t token = 0;
  std::uint8_t* data = nullptr;
  std::uint64_t size = 0;
  std::uint64_t tag = 0;
  Time threshold = 0;  // LT and deadline from the first data packet; 0: as learned
  Time deadline = 0;
};

enum class Failure : std::uint8_t {
  none = 0,
  no_answer,          // nothing that authenticates ever came back
  authentication,     // packets came from the peer's address, all failed authentication: secrets differ
  rank_in_use,        // the peer holds a live connection to another process of our rank
  wrong_rank,         // the peer is another rank than we were told
  too_many_peers,
  vanished,           // silent for dead_after
  restarted,          // the peer's process is a new one
  half_open,          // the peer asked, was answered, and never came back
  closed,             // the peer said goodbye
  protocol,           // an authenticated peer broke the protocol
  local_close,
};

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
  Time elapsed = 0;  // from submission (sent) or first data packet (received)
};

}  // namespace gradwire::ltp
