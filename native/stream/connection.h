// One established stream: frames of the outbox and control frames out, frames for the inbox in, sealed where the channel
// leaves this machine. Payload goes from and to the callers' buffers; what is small travels with its header.
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
  ltp::Secret sealing{}, opening{};
  bool encrypt = true;
};

class Connection {
 public:
  // Without protection, frames travel as they are.
  Connection(Channel& channel, Outbox& out, Inbox& in, std::deque<Frame>& control, const std::optional<Protection>& protection);

  // Writes what can be written. False: the other end is gone.
  bool flush(ltp::Time now);
  bool blocked() const { return blocked_; }

  enum class Status { idle, more, gone, broken, forged, goodbye };
  // Reads a bounded amount.
  Status receive(ltp::Time now);
  // The caller's buffer of this message must not be read any more.
  void detach(std::uint64_t id);

  // The clocks of keepalive: `tried` also when a full channel took nothing.
  void heard(ltp::Time now) { last_heard_ = last_sent_ = now; }
  void tried(ltp::Time now) { last_sent_ = now; }
  bool confirmed() const { return confirmed_; }
  ltp::Time last_sent() const { return last_sent_; }
  ltp::Time last_heard() const { return last_heard_; }
  // Round trips that pings saw.
  ltp::Time rtt() const { return rtt_; }
  ltp::Time best_rtt() const { return best_rtt_; }
  std::uint64_t sent() const { return sent_; }
  std::uint64_t received() const { return received_; }

 private:
  bool fill(ltp::Time now);
  void put(const Frame& frame);
  void put_payload(ltp::Time now, const Outbox::Next& next);
  bool push(ltp::Time now);
  std::size_t header_size() const { return kHeader + (opening_ ? 16 : 0); }
  bool pull(ltp::Time now, std::size_t want, Status& status);
  Status step(ltp::Time now);
  Status on_header(ltp::Time now);
  Status on_payload(ltp::Time now);
  bool on_control(ltp::Time now, const Frame& frame);

  Channel& channel_;
  Outbox& outbox_;
  Inbox& inbox_;
  std::deque<Frame>& control_;
  std::optional<RecordKeys> sealing_, opening_;
  bool encrypt_ = false, blocked_ = false, confirmed_ = false, goodbye_ = false;

  // Being written: head_, then body_ (a caller's buffer), then tail_.
  std::vector<std::uint8_t> head_, rescued_;
  Bytes body_;
  std::uint64_t body_id_ = 0;
  std::array<std::uint8_t, 16> tail_{};
  std::size_t tail_size_ = 0, done_ = 0;

  // Being read: what lies in buffer_[begin_, end_); then, while `payload_`, the rest of current_'s payload.
  std::vector<std::uint8_t> buffer_;
  std::size_t begin_ = 0, end_ = 0;
  bool payload_ = false;
  std::size_t got_ = 0;
  Frame current_;

  ltp::Time last_sent_ = 0, last_heard_ = 0, rtt_ = 0, best_rtt_ = 0;
  std::uint64_t sent_ = 0, received_ = 0;
};

}  // namespace gradwire::stream
