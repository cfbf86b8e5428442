#include "ltp/connection.h"

namespace gradwire::ltp {

// 1. Drop old numbers before any work is spent on them.
// 2. Authenticate and decrypt in place.
// 3. Parse all frames once without acting: a malformed packet changes nothing.
// 4. Act on each frame, then record the packet for acknowledgement unless it held data that had no buffer.
bool Connection::handle_packet(Time now, const SealedHeader& header, MutableBytes datagram) {
  now_ = now;
  if (failure_ != Failure::none) return false;
  if (replay_window_.contains(header.number)) {
    ++counters_.replayed;
    return false;
  }
  Bytes header_bytes = datagram.first(kSealedHeader);
  MutableBytes body = datagram.subspan(kSealedHeader);
  if (!opening_.open(header, header_bytes, body, start_.encrypt)) {
    ++counters_.authentication_failed;
    if (opening_.exhausted()) fail(now, Failure::key_limit);
    return false;
  }
  if (opening_.exhausted()) {
    fail(now, Failure::key_limit);
    return false;
  }
  bool newest = header.number >= replay_window_.end();
  replay_window_.insert(header.number);
  Bytes frames = body.first(body.size() - kTagSize);
  if (!well_formed(frames)) {
    ++counters_.malformed;
    return false;
  }
  if (!confirmed_) {
    confirmed_ = true;
    Event event;
    event.rank = start_.rank;
    events_.push_back(std::move(event));
  }
  last_received_ = now;
  ++counters_.packets_received;
  counters_.bytes_received += datagram.size();
  handle_frames(now, header.number, frames);
  return newest;
}

bool Connection::well_formed(Bytes frames) const {
  Reader in(frames);
  Frame frame;
  while (in.left())
    if (!next_frame(in, frame)) return false;
  return true;
}

void Connection::handle_frames(Time now, std::uint64_t number, Bytes frames) {
  Reader in(frames);
  Frame frame;
  bool eliciting = false, placed = true;
  while (in.left() && failure_ == Failure::none && next_frame(in, frame)) {
    eliciting |= !std::holds_alternative<AckFrame>(frame) && !std::holds_alternative<PaddingFrame>(frame);
    if (auto* data = std::get_if<DataFrame>(&frame)) {
      auto result = receives_.on_data(now, *data);
      if (result == ReceiveSide::DataResult::invalid) fail(now, Failure::protocol);
      placed &= result == ReceiveSide::DataResult::taken;
    } else if (auto* ack = std::get_if<AckFrame>(&frame)) {
      if (!recovery_.on_ack(now, *ack, *this)) fail(now, Failure::protocol);
    } else if (auto* open = std::get_if<OpenFrame>(&frame)) {
      placed &= receives_.on_open(now, *open);
    } else if (auto* posted = std::get_if<PostedFrame>(&frame)) {
      sends_.on_posted(*posted);
    } else if (auto* grant = std::get_if<GrantFrame>(&frame)) {
      sends_.on_grant(*grant);
    } else if (auto* hold = std::get_if<HoldFrame>(&frame)) {
      sends_.on_hold(*hold);
    } else if (auto* close = std::get_if<CloseFrame>(&frame)) {
      sends_.on_close(now, *close);
    } else if (auto* once = std::get_if<OnceFrame>(&frame)) {
      receives_.on_once(now, *once);
    } else if (auto* abort = std::get_if<AbortFrame>(&frame)) {
      receives_.on_abort(now, *abort);
    } else if (auto* challenge = std::get_if<ChallengeFrame>(&frame)) {
      control_.push_back({FrameType::response, 0, 0, challenge->token});
    } else if (auto* response = std::get_if<ResponseFrame>(&frame)) {
      response_ = response->token;
    } else if (std::get_if<ShutFrame>(&frame)) {
      fail(now, Failure::closed);
    }
  }
  if (placed) acks_.on_packet(now, number, eliciting, recovery_.rtt().least());
}

}  // namespace gradwire::ltp
