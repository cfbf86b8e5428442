#include "ltp/send_side.h"

#include <algorithm>

namespace gradwire::ltp {
namespace {

// Notices of receives we have not used yet; the oldest are forgotten first, which costs a round trip and no more.
constexpr std::size_t kPostedMost = 1024;
// Transfers announced ahead of their turn: enough to hide the round trip of a grant, few enough that a transfer is shaped
// for the path as it is when its turn comes.
constexpr std::ptrdiff_t kAnnounced = 4;

}  // namespace

void SendSide::activate(std::size_t payload) {
  auto busy = std::count_if(order_.begin(), order_.end(), [&](auto id) { return slots_[id % kTransferSlots]->pending(); });
  for (; busy < kAnnounced && !waiting_.empty() && !slots_[next_id_ % kTransferSlots]; ++busy) {
    auto& slot = slots_[next_id_ % kTransferSlots];
    slot = std::make_unique<Outgoing>(next_id_, std::move(waiting_.front().request), payload, waiting_.front().submitted);
    waiting_.pop_front();
    order_.push_back(next_id_);
    control_.push_back({FrameType::open, 0, next_id_, 0});
    const SendRequest& request = slot->request();
    auto posted = std::find_if(posted_.begin(), posted_.end(), [&](const PostedFrame& p) { return p.tag == request.tag; });
    if (posted != posted_.end()) {
      slot->granted = true;
      posted_.erase(posted);
    } else if (request.size <= credit_) {
      credit_ -= request.size;
      ahead_[next_id_] = request.size;
      slot->granted = true;
    }
    ++next_id_;
  }
}

bool SendSide::cancel(std::uint64_t token) {
  auto waiting = std::find_if(waiting_.begin(), waiting_.end(), [&](auto& w) { return w.request.token == token; });
  if (waiting != waiting_.end()) return waiting_.erase(waiting), true;
  for (std::uint32_t id : order_) {
    auto& slot = slots_[id % kTransferSlots];
    if (slot->request().token != token) continue;
    control_.push_back({FrameType::abort, 0, id, 0});
    order_.erase(std::find(order_.begin(), order_.end(), id));
    slot.reset();
    return true;
  }
  return false;
}

Outgoing* SendSide::ready(std::size_t payload) {
  if (!waiting_.empty()) activate(payload);
  for (std::uint32_t id : order_) {
    Outgoing* transfer = slots_[id % kTransferSlots].get();
    if (transfer->granted && transfer->pending()) return transfer;
  }
  return nullptr;
}

void SendSide::on_piece(Outgoing& transfer, const Outgoing::Piece& piece) {
  ++transfer.packets;
  if (piece.again) counters_.retransmitted_bytes += piece.bytes.size();
  // A lost OPEN would make everything behind it useless: say it again while it is unconfirmed.
  if (!transfer.open_acked && (transfer.packets == 4 || transfer.packets == 16))
    control_.push_back({FrameType::open, 0, transfer.id(), 0});
}

Outgoing* SendSide::find(std::uint32_t id) {
  auto& slot = slots_[id % kTransferSlots];
  return slot && slot->id() == id ? slot.get() : nullptr;
}

void SendSide::on_acked(Time now, std::uint32_t id, std::uint32_t first, std::uint32_t count) {
  Outgoing* transfer = find(id);
  if (!transfer) return;
  transfer->on_acked(first, count);
  // A receiver acknowledges what it can no longer use once a tolerant transfer is closed, so there only CLOSE tells
  // what arrived. A reliable one is never closed early, and its last ACK is proof.
  if (transfer->all_acked() && transfer->request().tolerance == kWhole) finish(now, *transfer);
}

void SendSide::on_lost(std::uint32_t id, std::uint32_t first, std::uint32_t count) {
  if (Outgoing* transfer = find(id)) transfer->on_lost(first, count);
}

void SendSide::grant(Outgoing& transfer) {
  transfer.granted = true;
  if (auto held = ahead_.find(transfer.id()); held != ahead_.end()) {
    credit_ += held->second;
    ahead_.erase(held);
  }
}

void SendSide::on_posted(const PostedFrame& posted) {
  for (std::uint32_t id : order_) {
    Outgoing& transfer = *slots_[id % kTransferSlots];
    if (transfer.request().tag == posted.tag && (!transfer.granted || ahead_.count(id))) return grant(transfer);
  }
  posted_.push_back(posted);
  if (posted_.size() > kPostedMost) posted_.pop_front();
}

void SendSide::on_grant(const GrantFrame& frame) {
  if (Outgoing* transfer = find(frame.id)) return grant(*transfer);
  if (auto held = ahead_.find(frame.id); held != ahead_.end()) {
    credit_ += held->second;
    ahead_.erase(held);
  }
}

void SendSide::on_close(Time now, const CloseFrame& close) {
  Outgoing* transfer = find(close.id);
  if (transfer && transfer->on_close(close)) finish(now, *transfer);
}

void SendSide::finish(Time now, Outgoing& transfer, Failure failure) {
  Event event;
  event.type = EventType::sent;
  event.rank = rank_;
  event.token = transfer.request().token;
  event.failure = failure;
  event.size = transfer.request().size;
  event.reason = transfer.close_reason();
  event.missing = transfer.missing();
  event.arrived = event.size;
  for (const ByteRange& range : event.missing) event.arrived -= range.length;
  if (failure != Failure::none) event.arrived = 0;
  event.elapsed = now - transfer.submitted();
  events_.push_back(std::move(event));
  std::uint32_t id = transfer.id();
  order_.erase(std::find(order_.begin(), order_.end(), id));
  slots_[id % kTransferSlots].reset();
}

void SendSide::fail_all(Time now, Failure failure) {
  while (!order_.empty()) finish(now, *slots_[order_.front() % kTransferSlots], failure);
  for (Waiting& waiting : waiting_) {
    Event event;
    event.type = EventType::sent;
    event.rank = rank_;
    event.token = waiting.request.token;
    event.failure = failure;
    event.size = waiting.request.size;
    events_.push_back(std::move(event));
  }
  waiting_.clear();
}

}  // namespace gradwire::ltp
