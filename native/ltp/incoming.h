// Incoming: one transfer being received. Grains are written directly to their place in the destination, in any order,
// without a reorder buffer; what never arrives is zero there (Bubble Filling).
#pragma once
#include <memory>
#include <optional>

#include "ltp/bitmap.h"
#include "ltp/early_close.h"
#include "ltp/frame.h"

namespace gradwire::ltp {

class Incoming {
 public:
  explicit Incoming(const OpenFrame& open);

  // False when the bytes are not on grain boundaries inside the transfer: a protocol error.
  bool fits(const DataFrame& data) const;
  // Copies grains into place; returns how many had arrived before.
  std::uint64_t accept(Time now, const DataFrame& data);

  void set_destination(std::uint8_t* data) { destination_ = data; }
  // Allocates memory for a transfer without a posted receive.
  void stage();
  bool has_destination() const { return destination_ != nullptr; }
  bool staged() const { return staging_ != nullptr; }
  void match(const ReceiveRequest& request);
  const std::optional<ReceiveRequest>& request() const { return request_; }

  void set_limits(const EarlyClose::Limits& limits) { limits_ = limits; }
  const EarlyClose::Limits& limits() const { return limits_; }
  // The sender has sent everything once.
  void on_once(Time now);
  // The reason to close now; none: it stays open. `allowance`: how long transfers of its operation may take.
  std::optional<CloseReason> reason_to_close(Time now, Time allowance) const;
  // When it closes if nothing more arrives; may be in the past.
  Time deadline(Time allowance) const;

  // Zeroes and lists what is missing, and releases the destination.
  void close(Time now, CloseReason reason);
  bool closed() const { return reason_.has_value(); }
  CloseReason reason() const { return *reason_; }
  CloseFrame close_frame(std::uint16_t part) const;
  std::uint16_t close_parts() const;
  // True when this was the last part that had to be acknowledged.
  bool on_close_acked(std::uint16_t part);
  bool close_acked() const { return close_left_ == 0; }

  Event received_event(std::uint32_t rank) const;
  const OpenFrame& open() const { return open_; }
  std::uint64_t bytes_arrived() const;
  Time elapsed() const { return elapsed_; }
  bool delivered = false;  // the event was reported

 private:
  bool critical_complete() const;
  bool has(std::uint32_t fraction) const;
  bool enough() const { return has(open_.tolerance); }
  Time projected() const;
  std::uint64_t bytes_of(std::uint64_t first, std::uint64_t count) const;

  OpenFrame open_;
  std::uint64_t grains_;
  Bitmap arrived_;
  std::optional<double> energy_;  // the share that arrived, where frames are WEIGHTED
  std::uint8_t* destination_ = nullptr;
  std::unique_ptr<std::uint8_t[]> staging_;
  std::optional<ReceiveRequest> request_;
  EarlyClose::Limits limits_;
  std::optional<Time> started_;
  Time newest_ = 0;       // when new data arrived last
  Time latest_ = kNever;  // limit of every extension
  Time spent_ = kNever;   // when everything that was sent once should have arrived
  std::optional<CloseReason> reason_;
  std::vector<GrainRange> missing_;
  std::vector<bool> parts_acked_;
  std::size_t close_left_ = 0;
  Time elapsed_ = 0;
};

}  // namespace gradwire::ltp
