#include "stream/connection.h"

#include <algorithm>

namespace gradwire::stream {
namespace {

constexpr std::size_t kTag = 16;
constexpr std::size_t kBuffer = 64u << 10;
// Copying this much next to its header is cheaper than another buffer in the system call.
constexpr std::size_t kCopied = 16u << 10;
constexpr std::size_t kHeadMost = 128u << 10;
// Read at once before other streams are served.
constexpr std::size_t kTurn = 1u << 20;

}  // namespace

Connection::Connection(Channel& channel, Outbox& out, Inbox& in, std::deque<Frame>& control,
                       const std::optional<Protection>& protection)
    : channel_(channel), outbox_(out), inbox_(in), control_(control), buffer_(kBuffer) {
  if (!protection) return;
  sealing_.emplace(protection->sealing, Aead::Direction::seal);
  opening_.emplace(protection->opening, Aead::Direction::open);
  encrypt_ = protection->encrypt;
}

void Connection::put(const Frame& frame) {
  std::size_t at = head_.size();
  head_.resize(at + header_size());
  MutableBytes header = MutableBytes(head_).subspan(at, kHeader);
  write(header, frame);
  if (sealing_) sealing_->seal(header, header.data(), header.data() + kHeader, encrypt_);
}

void Connection::put_payload(Time now, const Outbox::Next& next) {
  Bytes payload(next.payload, next.frame.length);
  std::size_t tag = sealing_ ? kTag : 0;
  if ((sealing_ && encrypt_) || payload.size() <= kCopied) {
    std::size_t at = head_.size();
    head_.resize(at + payload.size() + tag);
    std::uint8_t* out = head_.data() + at;
    if (!sealing_ || !encrypt_) std::memcpy(out, payload.data(), payload.size());
    if (sealing_) sealing_->seal(payload, out, out + payload.size(), encrypt_);
    outbox_.written(now, next.frame.id);
    return;
  }
  body_ = payload;
  body_id_ = next.frame.id;
  tail_size_ = tag;
  if (sealing_) sealing_->seal(payload, nullptr, tail_.data(), false);
}

bool Connection::fill(Time now) {
  head_.clear();
  body_ = {};
  tail_size_ = done_ = 0;
  for (; !outbox_.aborted().empty(); outbox_.aborted().pop_front())
    control_.push_back({FrameType::abort, 0, 0, outbox_.aborted().front(), 0, 0});
  for (; !control_.empty(); control_.pop_front()) put(control_.front());
  while (head_.size() < kHeadMost && body_.empty()) {
    auto next = outbox_.next();
    if (!next) break;
    put(next->frame);
    if (next->frame.length) put_payload(now, *next);
  }
  // Credit is sent with other frames, or alone once there is much of it. Not after a body has begun: frames are whole.
  if (body_.empty() && inbox_.owed() && (!head_.empty() || inbox_.owes_credit()))
    put({FrameType::credit, 0, 0, 0, inbox_.take_owed(), 0});
  return !head_.empty();
}

bool Connection::push(Time now) {
  iovec pieces[3];
  std::size_t count = 0, skip = done_;
  auto add = [&](const std::uint8_t* data, std::size_t size) {
    if (skip >= size) {
      skip -= size;
      return;
    }
    pieces[count++] = {const_cast<std::uint8_t*>(data) + skip, size - skip};
    skip = 0;
  };
  add(head_.data(), head_.size());
  add(body_.data(), body_.size());
  add(tail_.data(), tail_size_);
  std::ptrdiff_t written = channel_.write({pieces, count});
  if (written < 0) return false;
  blocked_ = written == 0;
  if (blocked_) return true;
  done_ += static_cast<std::size_t>(written);
  sent_ += static_cast<std::uint64_t>(written);
  last_sent_ = now;
  if (body_id_ && done_ >= head_.size() + body_.size()) outbox_.written(now, std::exchange(body_id_, 0));
  return true;
}

bool Connection::flush(Time now) {
  blocked_ = false;
  while (!blocked_) {
    if (done_ == head_.size() + body_.size() + tail_size_ && !fill(now)) return true;
    if (!push(now)) return false;
  }
  return true;
}

void Connection::detach(std::uint64_t id) {
  if (body_id_ != id || body_.empty() || body_.data() == detached_.data()) return;
  detached_.assign(body_.begin(), body_.end());
  body_ = detached_;
}

// Makes at least `want` bytes available in the buffer; reads when needed.
bool Connection::pull(Time now, std::size_t want, Status& status) {
  if (end_ - begin_ >= want) return true;
  std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
  end_ -= std::exchange(begin_, 0);
  iovec piece{buffer_.data() + end_, buffer_.size() - end_};
  std::ptrdiff_t count = channel_.read({&piece, 1});
  if (count > 0) {
    end_ += static_cast<std::size_t>(count);
    received_ += static_cast<std::uint64_t>(count);
    last_received_ = now;
  }
  status = count < 0 ? Status::closed : count == 0 ? Status::idle : Status::more;
  return end_ - begin_ >= want;
}

Connection::Status Connection::on_header(Time now) {
  Status status = Status::more;
  if (!pull(now, header_size(), status)) return status;
  MutableBytes bytes = MutableBytes(buffer_).subspan(begin_, kHeader);
  if (opening_ && !opening_->open(bytes, Bytes(buffer_).subspan(begin_ + kHeader, kTag), encrypt_))
    return Status::forged;
  begin_ += header_size();
  if (!parse(bytes, current_)) return Status::malformed;
  confirmed_ = true;
  if (current_.type == FrameType::goodbye) return Status::goodbye;
  if (current_.type != FrameType::open && current_.type != FrameType::data)
    return on_control(now, current_) ? Status::more : Status::malformed;
  if (!inbox_.begin(now, current_)) return Status::malformed;
  payload_ = current_.length > 0;
  got_ = 0;
  return Status::more;
}

Connection::Status Connection::on_payload(Time now) {
  std::uint8_t* target = inbox_.target();
  std::size_t length = current_.length;
  if (got_ < length && begin_ < end_) {
    std::size_t part = std::min(length - got_, end_ - begin_);
    std::memcpy(target + got_, buffer_.data() + begin_, part);
    got_ += part;
    begin_ += part;
  }
  if (got_ < length) {
    // The buffer is empty: the rest is read directly into its place, and what follows into the buffer.
    begin_ = end_ = 0;
    iovec pieces[2] = {{target + got_, length - got_}, {buffer_.data(), buffer_.size()}};
    std::ptrdiff_t count = channel_.read(pieces);
    if (count <= 0) return count < 0 ? Status::closed : Status::idle;
    last_received_ = now;
    received_ += static_cast<std::uint64_t>(count);
    std::size_t direct = std::min(length - got_, static_cast<std::size_t>(count));
    got_ += direct;
    end_ = static_cast<std::size_t>(count) - direct;
    if (got_ < length) return Status::more;
  }
  if (opening_) {
    Status status = Status::more;
    if (!pull(now, kTag, status)) return status;
    if (!opening_->open({target, length}, Bytes(buffer_).subspan(begin_, kTag), encrypt_)) return Status::forged;
    begin_ += kTag;
  }
  payload_ = false;
  inbox_.finish(now);
  return Status::more;
}

bool Connection::on_control(Time now, const Frame& frame) {
  switch (frame.type) {
    case FrameType::grant: return outbox_.on_grant(frame.id);
    case FrameType::credit: return outbox_.on_credit(frame.a);
    case FrameType::done:
      // Refused or cancelled by the receiver: the caller gets its buffer back while part of it may still be unwritten.
      detach(frame.id);
      return frame.a <= 5 && outbox_.on_done(now, frame.id, static_cast<CloseReason>(frame.a));
    case FrameType::abort: inbox_.on_abort(now, frame.id); return true;
    case FrameType::ping:
      // At most one answer is queued: a flood of pings costs no memory.
      if (std::none_of(control_.begin(), control_.end(), [](auto& f) { return f.type == FrameType::pong; }))
        control_.push_back({FrameType::pong, 0, 0, 0, frame.a, 0});
      return true;
    case FrameType::pong:
      // A time in the future is not ours: a peer may send any number.
      if (frame.a > static_cast<std::uint64_t>(now)) return true;
      rtt_ = now - static_cast<Time>(frame.a);
      if (rtt_ == 0) return true;
      best_rtt_ = best_rtt_ ? std::min(best_rtt_, rtt_) : rtt_;
      return true;
    default: return false;
  }
}

Connection::Status Connection::step(Time now) { return payload_ ? on_payload(now) : on_header(now); }

Connection::Status Connection::receive(Time now) {
  std::uint64_t start = received_;
  Status status = Status::more;
  while (status == Status::more) {
    status = step(now);
    if (status == Status::more && received_ - start >= kTurn) return status;
  }
  return status;
}

}  // namespace gradwire::stream
