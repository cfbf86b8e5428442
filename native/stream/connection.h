// Connection: one established stream. Frames of the outbox and control frames out, frames for the inbox in, sealed when
// the channel leaves this machine. Payload is sent from and received into the callers' buffers; small payload is copied
// next to its header.
#pragma once
#include <array>
#include <deque>
#include <optional>

#include "stream/channel.h"
#include "stream/inbox.h"
#include "stream/outbox.h"
#include "stream/record.h"

namespace gradwire::stream {

struct Protection {
  HeldSecret sealing, opening;
  bool encrypt = true;
};

class Connection {
 public:
  // Without protection, frames are sent in plain text.
  Connection(Channel& channel, Outbox& out, Inbox& in, std::deque<Frame>& control,
             const std::optional<Protection>& protection);

  // Writes until the channel blocks. False: the other end is closed.
  bool flush(Time now);
  bool blocked() const { return blocked_; }

  enum class Status { idle, more, closed, malformed, forged, goodbye };
  // Reads a bounded amount.
  Status receive(Time now);
  // The caller's buffer of this message is not read after this call.
  void detach(std::uint64_t id);

  // The clocks of keepalive. `mark_sent` is also called when a full channel accepted nothing.
  void mark_received(Time now) { last_received_ = last_sent_ = now; }
  void mark_sent(Time now) { last_sent_ = now; }
  bool confirmed() const { return confirmed_; }
  Time last_sent() const { return last_sent_; }
  Time last_received() const { return last_received_; }
  // Round trips measured by pings.
  Time rtt() const { return rtt_; }
  Time best_rtt() const { return best_rtt_; }
  std::uint64_t sent() const { return sent_; }
  std::uint64_t received() const { return received_; }

 private:
  bool fill(Time now);
  void put(const Frame& frame);
  void put_payload(Time now, const Outbox::Next& next);
  bool push(Time now);
  std::size_t header_size() const { return kHeader + (opening_ ? 16 : 0); }
  bool pull(Time now, std::size_t want, Status& status);
  Status step(Time now);
  Status on_header(Time now);
  Status on_payload(Time now);
  bool on_control(Time now, const Frame& frame);

  Channel& channel_;
  Outbox& outbox_;
  Inbox& inbox_;
  std::deque<Frame>& control_;
  std::optional<RecordKeys> sealing_, opening_;
  bool encrypt_ = false, blocked_ = false, confirmed_ = false, goodbye_ = false;

  // Being written: head_, then body_ (a caller's buffer), then tail_.
  std::vector<std::uint8_t> head_, detached_;
  Bytes body_;
  std::uint64_t body_id_ = 0;
  std::array<std::uint8_t, 16> tail_{};
  std::size_t tail_size_ = 0, done_ = 0;

  // Being read: buffer_[begin_, end_); then, while `payload_`, the rest of current_'s payload.
  std::vector<std::uint8_t> buffer_;
  std::size_t begin_ = 0, end_ = 0;
  bool payload_ = false;
  std::size_t got_ = 0;
  Frame current_;

  Time last_sent_ = 0, last_received_ = 0, rtt_ = 0, best_rtt_ = 0;
  std::uint64_t sent_ = 0, received_ = 0;
};

}  // namespace gradwire::stream
