#include "ltp/receive_side.h"

#include <algorithm>
#include <utility>

namespace gradwire::ltp {

Incoming* ReceiveSide::find(std::uint32_t id) const {
  auto& slot = slots_[id % kTransferSlots];
  return slot && slot->open().id == id ? slot.get() : nullptr;
}

const Incoming* ReceiveSide::closing(std::uint32_t id) const {
  Incoming* incoming = find(id);
  return incoming && incoming->closed() ? incoming : nullptr;
}

const ReceiveRequest* ReceiveSide::posted(std::uint64_t token) const {
  auto it = std::find_if(posted_.begin(), posted_.end(), [&](auto& r) { return r.token == token; });
  return it == posted_.end() ? nullptr : &*it;
}

void ReceiveSide::post(Time now, const ReceiveRequest& request) {
  for (std::uint32_t id : active_) {
    Incoming& incoming = *slots_[id % kTransferSlots];
    if (!incoming.request() && !incoming.delivered && incoming.open().tag == request.tag) return pair(now, incoming, request);
  }
  posted_.push_back(request);
  control_.push_back({FrameType::posted, 0, 0, request.token});
}

void ReceiveSide::pair(Time now, Incoming& incoming, const ReceiveRequest& request) {
  std::uint32_t id = incoming.open().id;
  if (incoming.staged()) credit_ += incoming.open().size;
  if (request.size < incoming.open().size) {
    // The buffer cannot hold it: both sides hear of it, nothing is written.
    ReceiveRequest empty = request;
    if (!incoming.closed()) incoming.set_destination(nullptr), close(now, incoming, CloseReason::refused);
    Event event;
    event.type = EventType::received;
    event.rank = rank_;
    event.token = empty.token;
    event.reason = CloseReason::refused;
    event.size = incoming.open().size;
    event.missing.push_back({0, event.size});
    events_.push_back(std::move(event));
    incoming.delivered = true;
    control_.push_back({FrameType::grant, 0, id, 0});
    if (incoming.close_acked()) release(id);
    return;
  }
  incoming.match(request);
  control_.push_back({FrameType::grant, 0, id, 0});
  if (!incoming.closed()) return check(now, incoming);
  deliver(incoming);
  if (incoming.close_acked()) release(id);
}

bool ReceiveSide::on_open(Time now, const OpenFrame& open) {
  if (seen_ids_.contains(open.id)) return true;
  auto& slot = slots_[open.id % kTransferSlots];
  if (slot) return false;
  seen_ids_.insert(open.id);
  slot = std::make_unique<Incoming>(open);
  active_.push_back(open.id);
  slot->set_limits(early_close_.limits(open.size, Time{open.rtprop_us} * kMicrosecond, static_cast<double>(open.btlbw)));
  auto request = std::find_if(posted_.begin(), posted_.end(), [&](auto& r) { return r.tag == open.tag; });
  if (request != posted_.end()) {
    ReceiveRequest taken = *request;
    posted_.erase(request);
    pair(now, *slot, taken);
  } else if (open.size <= credit_) {
    credit_ -= open.size;
    slot->stage();
  }
  return true;
}

ReceiveSide::Verdict ReceiveSide::on_data(Time now, const DataFrame& data) {
  Incoming* incoming = find(data.id);
  if (!incoming || (!incoming->closed() && !incoming->has_destination())) {
    if (!incoming && seen_ids_.contains(data.id)) return ++counters_.late_data, Verdict::taken;
    return ++counters_.unexpected_data, Verdict::unwanted;
  }
  if (!incoming->fits(data)) return Verdict::broken;
  if (incoming->closed()) {
    ++counters_.late_data;
    // For a reliable sender the last ACK means "delivered": what comes after a refusal must not be acknowledged.
    return incoming->open().tolerance == kWhole && incoming->reason() != CloseReason::complete ? Verdict::unwanted : Verdict::taken;
  }
  counters_.duplicate_data += incoming->accept(now, data);
  check(now, *incoming);
  return Verdict::taken;
}

void ReceiveSide::check(Time now, Incoming& incoming) {
  if (auto reason = incoming.verdict(now)) close(now, incoming, *reason);
}

void ReceiveSide::close(Time now, Incoming& incoming, CloseReason reason) {
  incoming.close(now, reason);
  if (reason != CloseReason::refused && reason != CloseReason::cancelled)
    early_close_.on_closed(incoming.limits(), incoming.elapsed(),
                           static_cast<double>(incoming.bytes_arrived()) / static_cast<double>(incoming.open().size));
  for (std::uint16_t part = 0; part < incoming.close_parts(); ++part)
    control_.push_back({FrameType::close, part, incoming.open().id, 0});
  if (incoming.request()) deliver(incoming);
}

void ReceiveSide::deliver(Incoming& incoming) {
  if (std::exchange(incoming.delivered, true)) return;
  events_.push_back(incoming.received_event(rank_));
}

void ReceiveSide::release(std::uint32_t id) {
  active_.erase(std::find(active_.begin(), active_.end(), id));
  slots_[id % kTransferSlots].reset();
}

void ReceiveSide::on_close_acked(const Control& control) {
  Incoming* incoming = find(control.id);
  if (!incoming || !incoming->closed() || !incoming->on_close_acked(control.part)) return;
  if (incoming->delivered) release(control.id);
}

void ReceiveSide::on_abort(Time now, const AbortFrame& abort) {
  Incoming* incoming = find(abort.id);
  if (!incoming) {
    seen_ids_.insert(abort.id);
    return;
  }
  if (incoming->request()) {
    if (!incoming->closed()) close(now, *incoming, CloseReason::cancelled);
    return;
  }
  // Nobody has asked for it: forget it and give its credit back.
  if (incoming->staged()) credit_ += incoming->open().size;
  control_.push_back({FrameType::grant, 0, abort.id, 0});
  release(abort.id);
}

bool ReceiveSide::cancel(Time now, std::uint64_t token) {
  auto request = std::find_if(posted_.begin(), posted_.end(), [&](auto& r) { return r.token == token; });
  if (request != posted_.end()) return posted_.erase(request), true;
  for (std::uint32_t id : active_) {
    Incoming& incoming = *slots_[id % kTransferSlots];
    if (!incoming.request() || incoming.request()->token != token || incoming.closed()) continue;
    incoming.delivered = true;
    incoming.set_destination(nullptr);
    close(now, incoming, CloseReason::cancelled);
    return true;
  }
  return false;
}

Time ReceiveSide::deadline(Time now) const {
  Time earliest = kNever;
  for (std::uint32_t id : active_) earliest = std::min(earliest, slots_[id % kTransferSlots]->deadline(now));
  return earliest;
}

void ReceiveSide::on_deadline(Time now) {
  for (std::uint32_t id : active_) {
    Incoming& incoming = *slots_[id % kTransferSlots];
    if (!incoming.closed() && incoming.has_destination()) check(now, incoming);
  }
}

void ReceiveSide::fail_all(Failure failure) {
  auto fail = [&](const ReceiveRequest& request, std::uint64_t size) {
    Event event;
    event.type = EventType::received;
    event.rank = rank_;
    event.token = request.token;
    event.failure = failure;
    event.size = size;
    events_.push_back(std::move(event));
  };
  for (const ReceiveRequest& request : posted_) fail(request, request.size);
  posted_.clear();
  for (std::uint32_t id : active_) {
    Incoming& incoming = *slots_[id % kTransferSlots];
    if (incoming.request() && !incoming.delivered) fail(*incoming.request(), incoming.open().size);
    slots_[id % kTransferSlots].reset();
  }
  active_.clear();
}

}  // namespace gradwire::ltp
