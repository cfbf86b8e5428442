#include "stream/outbox.h"

#include <algorithm>
#include <array>
#include <utility>

namespace gradwire::stream {

void Outbox::send(Time now, const SendRequest& request) {
  sending_.push_back({request, next_id_++, 0, now, false, false, false});
  by_id_[sending_.back().id] = std::prev(sending_.end());
}

// A small message is sent as a whole or not at all; of a large one, what credit allows.
std::size_t Outbox::allowed(const Message& message) const {
  std::uint64_t left = message.request.size - message.made;
  std::uint64_t most = std::min<std::uint64_t>(left, kPiece);
  if (message.granted) return most;
  std::uint64_t cost = message.opened ? 0 : kMessageCost, room = credit_ - std::min(credit_, cost);
  if (most <= room) return most;
  return message.request.size <= kEager ? 0 : room;
}

std::optional<Outbox::Next> Outbox::next() {
  for (auto at = sending_.begin(); at != sending_.end(); ++at) {
    Message& message = *at;
    std::size_t length = allowed(message);
    if (message.opened && length == 0) continue;
    if (!message.opened && announced_ >= kAnnouncedMost / 2) continue;
    Next next;
    next.frame.type = message.opened ? FrameType::data : FrameType::open;
    next.frame.id = message.id;
    next.frame.a = message.opened ? message.made : message.request.tag;
    next.frame.b = message.opened ? 0 : message.request.size;
    next.frame.length = static_cast<std::uint32_t>(length);
    next.payload = message.request.data + message.made;
    if (length && !message.granted) {
      next.frame.flags = kCharged;
      credit_ -= charge(next.frame);
    }
    if (!message.opened && !length) {
      message.counted = true;
      ++announced_;
    }
    message.opened = true;
    message.made += length;
    if (message.made == message.request.size) waiting_.splice(waiting_.end(), sending_, at);
    return next;
  }
  return std::nullopt;
}

void Outbox::written(Time now, std::uint64_t id) {
  auto found = by_id_.find(id);
  if (found == by_id_.end()) return;
  const Message& message = *found->second;
  if (message.made == message.request.size && message.request.size <= kEager)
    finish(now, found->second, CloseReason::complete, Failure::none);
}

void Outbox::finish(Time now, Messages::iterator at, CloseReason reason, Failure failure) {
  Event event;
  event.type = EventType::sent;
  event.rank = rank_;
  event.token = at->request.token;
  event.reason = reason;
  event.failure = failure;
  event.size = at->request.size;
  bool arrived = failure == Failure::none && reason == CloseReason::complete;
  event.arrived = arrived ? event.size : 0;
  if (!arrived && failure == Failure::none) event.missing.push_back({0, event.size});
  event.elapsed = now - at->submitted;
  events_.push_back(std::move(event));
  forget(at);
}

void Outbox::settle(Message& message) {
  if (std::exchange(message.counted, false)) --announced_;
}

void Outbox::forget(Messages::iterator at) {
  settle(*at);
  by_id_.erase(at->id);
  (at->made == at->request.size ? waiting_ : sending_).erase(at);
}

bool Outbox::on_grant(std::uint64_t id) {
  if (id == 0 || id >= next_id_) return false;
  if (auto found = by_id_.find(id); found != by_id_.end()) {
    found->second->granted = true;
    settle(*found->second);
  }
  return true;
}

// No peer ever gives more credit than the 32 bits of a greeting can express.
bool Outbox::on_credit(std::uint64_t bytes) {
  if (bytes > UINT32_MAX || credit_ > UINT32_MAX) return false;
  credit_ += bytes;
  return true;
}

bool Outbox::on_done(Time now, std::uint64_t id, CloseReason reason) {
  using enum CloseReason;
  if (id == 0 || id >= next_id_ || (reason != complete && reason != refused && reason != cancelled)) return false;
  auto found = by_id_.find(id);
  if (found == by_id_.end()) return true;  // a small or a cancelled one
  if (reason == complete && found->second->made != found->second->request.size) return false;
  // The receiver removes a refused message when an ABORT reports that no more of it follows.
  if (found->second->made != found->second->request.size) aborted_.push_back(id);
  finish(now, found->second, reason, Failure::none);
  return true;
}

std::optional<std::uint64_t> Outbox::id_of(std::uint64_t token) const {
  for (const Messages* list : {&sending_, &waiting_})
    for (const Message& message : *list)
      if (message.request.token == token) return message.id;
  return std::nullopt;
}

bool Outbox::cancel(std::uint64_t token) {
  for (Messages* list : {&sending_, &waiting_})
    for (auto at = list->begin(); at != list->end(); ++at)
      if (at->request.token == token) {
        if (at->opened) aborted_.push_back(at->id);
        forget(at);
        return true;
      }
  return false;
}

void Outbox::detach(std::uint64_t token) {
  for (Message& message : sending_)
    if (message.request.token == token)
      return message.request.detach(std::array{ByteRange{message.made, message.request.size - message.made}});
}

void Outbox::fail_all(Failure failure) {
  while (!sending_.empty()) finish(sending_.front().submitted, sending_.begin(), CloseReason::complete, failure);
  while (!waiting_.empty()) finish(waiting_.front().submitted, waiting_.begin(), CloseReason::complete, failure);
}

}  // namespace gradwire::stream
