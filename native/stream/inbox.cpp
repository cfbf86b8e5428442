#include "stream/inbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace gradwire::stream {

bool Inbox::post(Time now, const ReceiveRequest& request, bool open) {
  auto waiting = unclaimed_.lower_bound({request.tag, 0});
  if (waiting != unclaimed_.end() && waiting->first == request.tag) {
    std::uint64_t id = waiting->second;
    unclaimed_.erase(waiting);
    pair(now, incoming_.at(id), request);
    return true;
  }
  if (open) posted_[request.tag].push_back(request);
  return open;
}

void Inbox::pair(Time now, Incoming& incoming, const ReceiveRequest& request) {
  incoming.paired = true;
  if (std::exchange(incoming.bare, false)) --bare_;
  owed_ += incoming.held;
  held_ -= std::exchange(incoming.held, 0);
  if (request.size < incoming.size) return refuse(now, incoming, request);
  incoming.token = request.token;
  incoming.data = request.data;
  // Including the part of a frame that is still being read: reading continues in the new place.
  if (!incoming.staged.empty()) std::memcpy(incoming.data, incoming.staged.data(), incoming.staged.size());
  incoming.staged = {};
  if (incoming.arrived == incoming.size) {
    report(now, incoming, incoming.token, CloseReason::complete, Failure::none);
    return erase(incoming.id);
  }
  bool rest_is_here = current_.id == incoming.id && incoming.arrived + current_.length == incoming.size;
  if (!rest_is_here) control_.push_back({FrameType::grant, 0, 0, incoming.id, 0, 0});
}

void Inbox::refuse(Time now, Incoming& incoming, const ReceiveRequest& request) {
  report(now, incoming, request.token, CloseReason::refused, Failure::none);
  if (incoming.arrived == incoming.size) return erase(incoming.id);
  discard(incoming, CloseReason::refused);
}

// Its data is dropped. Its entry stays until the sender has stopped.
void Inbox::discard(Incoming& incoming, CloseReason reason) {
  if (current_.id == incoming.id && current_.length) {
    const std::uint8_t* from = incoming.data             ? incoming.data
                               : incoming.staged.empty() ? nullptr
                                                         : incoming.staged.data();
    scratch_.assign(current_.length, 0);
    // The frame being read is authenticated as a whole, so its first part is kept.
    if (from) std::memcpy(scratch_.data(), from + incoming.arrived, current_.length);
  }
  incoming.discarded = true;
  incoming.data = nullptr;
  incoming.staged = {};
  control_.push_back({FrameType::done, 0, 0, incoming.id, static_cast<std::uint64_t>(reason), 0});
}

bool Inbox::begin(Time now, const Frame& frame) {
  if (frame.type == FrameType::open) {
    if (frame.id <= last_id_) return false;
    last_id_ = frame.id;
    Incoming& incoming = incoming_[frame.id];
    incoming.id = frame.id;
    incoming.tag = frame.a;
    incoming.size = frame.b;
    incoming.started = now;
    current_ = frame;
    auto request = posted_.find(frame.a);
    if (request != posted_.end()) {
      ReceiveRequest taken = request->second.front();
      request->second.pop_front();
      if (request->second.empty()) posted_.erase(request);
      pair(now, incoming, taken);
    } else {
      unclaimed_.insert({frame.a, frame.id});
      if (frame.length == 0) {
        incoming.bare = true;
        ++bare_;
      }
      if (bare_ > kAnnouncedMost) return false;
    }
  }
  auto found = incoming_.find(frame.id);
  if (found == incoming_.end()) return false;
  Incoming& incoming = found->second;
  if (frame.length > incoming.size - incoming.arrived) return false;
  if (frame.type == FrameType::data && frame.a != incoming.arrived) return false;
  current_ = frame;
  if (incoming.discarded) scratch_.resize(frame.length);
  if (incoming.paired) {
    owed_ += charge(frame);
  } else {
    // Data without a posted receive needs credit.
    if (frame.length && !(frame.flags & kCharged)) return false;
    if (held_ + charge(frame) > credit_) return false;
    held_ += charge(frame);
    incoming.held += charge(frame);
    incoming.staged.resize(incoming.arrived + frame.length);
  }
  return true;
}

std::uint8_t* Inbox::target() {
  Incoming& incoming = incoming_.at(current_.id);
  if (incoming.discarded) return scratch_.data();
  return (incoming.data ? incoming.data : incoming.staged.data()) + incoming.arrived;
}

void Inbox::finish(Time now) {
  Frame frame = std::exchange(current_, {});
  Incoming& incoming = incoming_.at(frame.id);
  incoming.arrived += frame.length;
  if (incoming.arrived == incoming.size) complete(now, incoming);
}

void Inbox::complete(Time now, Incoming& incoming) {
  if (incoming.discarded) return erase(incoming.id);
  if (incoming.size > kEager) {
    auto reason = static_cast<std::uint64_t>(CloseReason::complete);
    control_.push_back({FrameType::done, 0, 0, incoming.id, reason, 0});
  }
  if (!incoming.paired) return;
  report(now, incoming, incoming.token, CloseReason::complete, Failure::none);
  erase(incoming.id);
}

void Inbox::erase(std::uint64_t id) { incoming_.erase(id); }

void Inbox::report(Time now, const Incoming& incoming, std::uint64_t token, CloseReason reason, Failure failure) {
  Event event;
  event.type = EventType::received;
  event.rank = rank_;
  event.token = token;
  event.reason = reason;
  event.failure = failure;
  event.size = incoming.size;
  bool whole = failure == Failure::none && reason == CloseReason::complete;
  event.arrived = whole ? incoming.size : 0;
  if (!whole && failure == Failure::none) event.missing.push_back({0, event.size});
  event.elapsed = now - incoming.started;
  events_.push_back(std::move(event));
}

void Inbox::on_abort(Time now, std::uint64_t id) {
  auto found = incoming_.find(id);
  if (found == incoming_.end()) return;
  Incoming& incoming = found->second;
  if (incoming.paired && !incoming.discarded)
    report(now, incoming, incoming.token, CloseReason::cancelled, Failure::none);
  if (!incoming.paired) {
    // Complete: for its sender it is delivered, and it may still be received.
    if (incoming.arrived == incoming.size) return;
    unclaimed_.erase({incoming.tag, id});
    if (incoming.bare) --bare_;
    owed_ += incoming.held;
    held_ -= incoming.held;
  }
  erase(id);
}

bool Inbox::cancel(std::uint64_t token) {
  for (auto at = posted_.begin(); at != posted_.end(); ++at) {
    auto& requests = at->second;
    auto found = std::find_if(requests.begin(), requests.end(), [&](auto& request) { return request.token == token; });
    if (found == requests.end()) continue;
    requests.erase(found);
    if (requests.empty()) posted_.erase(at);
    return true;
  }
  for (auto& [id, incoming] : incoming_) {
    if (!incoming.paired || incoming.discarded || incoming.token != token) continue;
    discard(incoming, CloseReason::cancelled);
    return true;
  }
  return false;
}

void Inbox::fail_all(Failure failure) {
  Incoming none;
  for (auto& [tag, requests] : posted_)
    for (auto& request : requests) {
      none.size = request.size;
      report(0, none, request.token, CloseReason::complete, failure);
    }
  posted_.clear();
  unclaimed_.clear();
  // Complete messages can still be received after the connection has failed.
  std::erase_if(incoming_, [&](auto& entry) {
    const Incoming& incoming = entry.second;
    if (incoming.paired && !incoming.discarded)
      report(incoming.started, incoming, incoming.token, CloseReason::complete, failure);
    return incoming.paired || incoming.arrived != incoming.size;
  });
  for (auto& [id, incoming] : incoming_) unclaimed_.insert({incoming.tag, id});
  current_ = {};
}

}  // namespace gradwire::stream
