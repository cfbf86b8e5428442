#include "ltp/send_side.h"

#include <algorithm>
#include <array>

namespace gradwire::ltp {
namespace {

// POSTED frames not used yet. Dropping one costs a round trip, as its transfer is announced anyway.
constexpr std::size_t kPostedMost = 4096;
// Transfers that are sending or about to: enough that the next one is announced before its turn, few enough that it is
// cut by the MTU of that time.
constexpr std::size_t kSending = 4;
// Transfers announced that may not send yet: their receiver can grant them even when its POSTED was dropped here.
constexpr std::size_t kHeldMost = 64;
// The receiver distinguishes old ids from new ones in a window of 1024: an unconfirmed OPEN must stay inside it.
constexpr TransferId kOpenSpan = 512;

}  // namespace

void SendSide::submit(Time now, SendRequest request) {
  waiting_.push_back({std::move(request), now});
  changed_ = true;
}

std::size_t SendSide::count_sending() const {
  return static_cast<std::size_t>(
      std::count_if(sending_.begin(), sending_.end(), [&](auto id) { return transfers_.at(id)->pending(); }));
}

// OPENs of one tag must arrive in order, or receives would be paired in the wrong order: each waits for the ACK of the
// last.
bool SendSide::behind_its_tag(std::uint64_t tag) const { return last_of_tag_.count(tag) > 0; }

bool SendSide::may_open(const SendRequest& request, Standing& standing) {
  if (auto posted = std::find(posted_.begin(), posted_.end(), request.tag); posted != posted_.end()) {
    posted_.erase(posted);
    standing = Standing::posted;
  } else if (credit_cost(request.size) <= credit_) {
    standing = Standing::ahead;
  } else {
    standing = Standing::waiting;
    return held_ < kHeldMost;
  }
  return true;
}

void SendSide::open_waiting(std::size_t payload) {
  std::unordered_set<std::uint64_t> passed;  // tags of transfers that must wait: later ones of the tag must wait too
  std::size_t sending = count_sending();
  auto it = waiting_.begin();
  while (it != waiting_.end() && sending < kSending &&
         (unconfirmed_.empty() || next_id_ - *unconfirmed_.begin() < kOpenSpan)) {
    std::uint64_t tag = it->request.tag;
    Standing standing{};
    if (passed.count(tag) || behind_its_tag(tag) || !may_open(it->request, standing)) {
      passed.insert(tag);
      ++it;
      continue;
    }
    open(*it, standing, payload);
    sending += standing != Standing::waiting;
    it = waiting_.erase(it);
  }
  // While fewer than kSending are sending, only an event can let another transfer open.
  if (sending < kSending) changed_ = false;
}

void SendSide::open(Waiting& waiting, Standing standing, std::size_t payload) {
  TransferId id = next_id_++;
  std::uint64_t cost = credit_cost(waiting.request.size);
  last_of_tag_[waiting.request.tag] = id;
  auto& transfer = transfers_[id] =
      std::make_unique<Outgoing>(id, std::move(waiting.request), payload, waiting.submitted);
  transfer->standing = standing;
  transfer->granted = standing != Standing::waiting;
  transfer->met = standing == Standing::posted;
  if (standing == Standing::ahead) {
    credit_ -= cost;
    ahead_[id] = cost;
  }
  if (transfer->granted)
    sending_.insert(id);
  else
    ++held_;
  order_.insert(id);
  unconfirmed_.insert(id);
  control_.push_back({FrameType::open, 0, id, 0});
}

bool SendSide::cancel(std::uint64_t token) {
  auto waiting = std::find_if(waiting_.begin(), waiting_.end(), [&](auto& w) { return w.request.token == token; });
  if (waiting != waiting_.end()) {
    waiting_.erase(waiting);
    changed_ = true;
    return true;
  }
  for (TransferId id : order_) {
    if (transfers_.at(id)->request().token != token) continue;
    control_.push_back({FrameType::abort, 0, id, 0});
    remove(id);
    return true;
  }
  return false;
}

void SendSide::detach(std::uint64_t token) {
  for (Waiting& waiting : waiting_)
    if (waiting.request.token == token) return waiting.request.detach(std::array{ByteRange{0, waiting.request.size}});
  for (TransferId id : order_)
    if (transfers_.at(id)->request().token == token) return transfers_.at(id)->detach();
}

Outgoing* SendSide::ready(std::size_t payload) {
  if (changed_ && !waiting_.empty()) open_waiting(payload);
  while (!sending_.empty()) {
    Outgoing* transfer = transfers_.at(*sending_.begin()).get();
    if (transfer->pending()) return transfer;
    sending_.erase(sending_.begin());
    changed_ = true;
    if (!waiting_.empty()) open_waiting(payload);
  }
  return nullptr;
}

void SendSide::on_piece(Outgoing& transfer, const Outgoing::Piece& piece) {
  ++transfer.packets;
  if (!transfer.pending()) changed_ = true;
  if (piece.again) counters_.retransmitted_bytes += piece.bytes.size();
  if (transfer.request().tolerance != kWhole && !transfer.once_sent && transfer.all_sent_once()) {
    transfer.once_sent = true;
    control_.push_back({FrameType::once, 0, transfer.id(), 0});
  }
  // A lost OPEN would make all data after it useless: send it again while it is unconfirmed.
  if (!transfer.open_acked && (transfer.packets == 4 || transfer.packets == 16))
    control_.push_back({FrameType::open, 0, transfer.id(), 0});
}

Outgoing* SendSide::find(TransferId id) {
  auto found = transfers_.find(id);
  return found == transfers_.end() ? nullptr : found->second.get();
}

void SendSide::on_open_acked(TransferId id) {
  Outgoing* transfer = find(id);
  if (!transfer || transfer->open_acked) return;
  transfer->open_acked = changed_ = true;
  unconfirmed_.erase(id);
  if (auto last = last_of_tag_.find(transfer->request().tag); last != last_of_tag_.end() && last->second == id)
    last_of_tag_.erase(last);
}

void SendSide::on_acked(Time now, TransferId id, std::uint32_t first, std::uint32_t count) {
  Outgoing* transfer = find(id);
  if (!transfer) return;
  transfer->on_acked(first, count);
  // A receiver acknowledges data that it drops after a tolerant transfer is closed, so only CLOSE reports what arrived.
  // A reliable one is never closed early, and its last ACK is proof.
  if (transfer->all_acked() && transfer->request().tolerance == kWhole) finish(now, *transfer);
}

void SendSide::on_lost(TransferId id, std::uint32_t first, std::uint32_t count) {
  Outgoing* transfer = find(id);
  if (!transfer) return;
  transfer->on_lost(first, count);
  if (transfer->granted) sending_.insert(id);
}

void SendSide::return_credit(TransferId id) {
  auto held = ahead_.find(id);
  if (held == ahead_.end()) return;
  credit_ += held->second;
  ahead_.erase(held);
  changed_ = true;
}

// A hint only: it may be stale. An announced transfer does not need it, because the receiver pairs it and sends GRANT.
void SendSide::on_posted(const PostedFrame& posted) {
  changed_ = true;
  for (TransferId id : order_) {
    Outgoing& transfer = *transfers_.at(id);
    if (transfer.request().tag == posted.tag && !transfer.met) {
      transfer.met = true;
      return;
    }
  }
  posted_.push_back(posted.tag);
  if (posted_.size() > kPostedMost) posted_.pop_front();
}

void SendSide::on_grant(const GrantFrame& frame) {
  return_credit(frame.id);
  Outgoing* transfer = find(frame.id);
  if (!transfer) return;
  if (!transfer->granted) {
    --held_;
    changed_ = true;
  }
  transfer->granted = transfer->met = true;
  transfer->standing = Standing::posted;
  transfer->decided = true;
  sending_.insert(frame.id);
}

void SendSide::on_hold(const HoldFrame& frame) {
  Outgoing* transfer = find(frame.id);
  if (!transfer || transfer->decided || !transfer->granted) return;
  return_credit(frame.id);
  transfer->granted = transfer->met = false;
  transfer->standing = Standing::waiting;
  sending_.erase(frame.id);
  ++held_;
  changed_ = true;
}

void SendSide::on_close(Time now, const CloseFrame& close) {
  Outgoing* transfer = find(close.id);
  if (transfer && transfer->on_close(close)) finish(now, *transfer);
}

void SendSide::remove(TransferId id) {
  on_open_acked(id);
  if (!transfers_.at(id)->granted) --held_;
  sending_.erase(id);
  order_.erase(id);
  transfers_.erase(id);
  changed_ = true;
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
  remove(transfer.id());
}

void SendSide::hand_over(std::vector<SendRequest>& requests) const {
  for (TransferId id : order_) requests.push_back(transfers_.at(id)->request());
  for (const Waiting& waiting : waiting_) requests.push_back(waiting.request);
}

void SendSide::fail_all(Time now, Failure failure) {
  while (!order_.empty()) finish(now, *transfers_.at(*order_.begin()), failure);
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
