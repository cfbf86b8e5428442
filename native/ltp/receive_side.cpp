#include "ltp/receive_side.h"

#include <algorithm>
#include <utility>

namespace gradwire::ltp {
namespace {

// More than a peer that respects its credit can have open: it limits memory, not correctness.
constexpr std::size_t kIncomingMost = 1u << 16;

}  // namespace

Incoming* ReceiveSide::find(TransferId id) const {
  auto found = transfers_.find(id);
  return found == transfers_.end() ? nullptr : found->second.get();
}

bool ReceiveSide::held(TransferId id) const {
  Incoming* incoming = find(id);
  return incoming && !incoming->request() && !incoming->staged() && !incoming->closed();
}

const Incoming* ReceiveSide::closing(TransferId id) const {
  Incoming* incoming = find(id);
  return incoming && incoming->closed() ? incoming : nullptr;
}

const ReceiveRequest* ReceiveSide::posted(std::uint64_t token) const {
  auto it = std::find_if(posted_.begin(), posted_.end(), [&](auto& r) { return r.token == token; });
  return it == posted_.end() ? nullptr : &*it;
}

void ReceiveSide::post(Time now, const ReceiveRequest& request) {
  deadlines_.on_posted(rank_, request.tag);
  // Equal keys keep the order of insertion.
  auto waiting = unclaimed_.lower_bound(request.tag);
  if (waiting != unclaimed_.end() && waiting->first == request.tag) return pair(now, *find(waiting->second), request);
  posted_.push_back(request);
  control_.push_back({FrameType::posted, 0, 0, request.token});
}

void ReceiveSide::pair(Time now, Incoming& incoming, const ReceiveRequest& request) {
  TransferId id = incoming.open().id;
  claim(incoming);
  if (incoming.staged()) credit_ += credit_cost(incoming.open().size);
  if (request.size < incoming.open().size) {
    // The buffer is too small: both sides get an event, nothing is written.
    if (!incoming.closed()) {
      incoming.set_destination(nullptr);
      close(now, incoming, CloseReason::refused);
    }
    Event event;
    event.type = EventType::received;
    event.rank = rank_;
    event.token = request.token;
    event.reason = CloseReason::refused;
    event.size = incoming.open().size;
    event.missing.push_back({0, event.size});
    events_.push_back(std::move(event));
    deadlines_.on_withdrawn(rank_, request.tag);
    incoming.delivered = true;
    control_.push_back({FrameType::grant, 0, id, 0});
    if (incoming.close_acked()) release(id);
    return;
  }
  incoming.match(request);
  control_.push_back({FrameType::grant, 0, id, 0});
  if (!incoming.closed()) return check(now, incoming);
  deliver(incoming);
  deadlines_.on_ended(request.tag, incoming.elapsed());
  if (incoming.close_acked()) release(id);
}

bool ReceiveSide::on_open(Time now, const OpenFrame& open) {
  if (seen_ids_.contains(open.id)) return true;
  if (transfers_.size() >= kIncomingMost) return false;
  seen_ids_.insert(open.id);
  auto& slot = transfers_[open.id] = std::make_unique<Incoming>(open);
  unclaimed_.emplace(open.tag, open.id);
  if (open.tolerance != kWhole) timed_.push_back(open.id);
  slot->set_limits(
      deadlines_.early_close.limits(open.size, Time{open.rtprop_us} * kMicrosecond, static_cast<double>(open.btlbw)));
  auto request = std::find_if(posted_.begin(), posted_.end(), [&](auto& r) { return r.tag == open.tag; });
  if (request != posted_.end()) {
    ReceiveRequest taken = *request;
    posted_.erase(request);
    pair(now, *slot, taken);
  } else if (open.standing == Standing::ahead && credit_cost(open.size) <= credit_) {
    credit_ -= credit_cost(open.size);
    slot->stage();
  } else if (open.standing != Standing::waiting) {
    // It follows a POSTED that is no longer valid. Without this answer its data would be sent again and again for
    // nothing.
    control_.push_back({FrameType::hold, 0, open.id, 0});
  }
  return true;
}

ReceiveSide::DataResult ReceiveSide::on_data(Time now, const DataFrame& data) {
  Incoming* incoming = find(data.id);
  if (!incoming || (!incoming->closed() && !incoming->has_destination())) {
    bool late = !incoming && seen_ids_.contains(data.id);
    ++(late ? counters_.late_data : counters_.unexpected_data);
    return late ? DataResult::taken : DataResult::unwanted;
  }
  if (!incoming->fits(data)) return DataResult::invalid;
  if (incoming->closed()) {
    ++counters_.late_data;
    // For a reliable sender the last ACK means "delivered": data after a refusal must not be acknowledged.
    return incoming->open().tolerance == kWhole && incoming->reason() != CloseReason::complete ? DataResult::unwanted
                                                                                               : DataResult::taken;
  }
  counters_.duplicate_data += incoming->accept(now, data);
  check(now, *incoming);
  return DataResult::taken;
}

void ReceiveSide::check(Time now, Incoming& incoming) {
  if (auto reason = incoming.reason_to_close(now, allowance(incoming))) close(now, incoming, *reason);
}

Time ReceiveSide::allowance(const Incoming& incoming) const {
  bool tolerant = incoming.open().tolerance != kWhole;
  return tolerant && incoming.request() ? deadlines_.allowance(incoming.open().tag) : kNever;
}

void ReceiveSide::close(Time now, Incoming& incoming, CloseReason reason) {
  incoming.close(now, reason);
  if (reason != CloseReason::refused && reason != CloseReason::cancelled)
    deadlines_.early_close.on_closed(
        incoming.limits(), incoming.elapsed(),
        static_cast<double>(incoming.bytes_arrived()) / static_cast<double>(incoming.open().size));
  for (std::uint16_t part = 0; part < incoming.close_parts(); ++part)
    control_.push_back({FrameType::close, part, incoming.open().id, 0});
  if (incoming.request()) {
    deliver(incoming);
    if (reason != CloseReason::refused && reason != CloseReason::cancelled)
      deadlines_.on_ended(incoming.open().tag, incoming.elapsed());
    else if (reason == CloseReason::cancelled)
      deadlines_.on_withdrawn(rank_, incoming.open().tag);
  }
}

void ReceiveSide::deliver(Incoming& incoming) {
  if (std::exchange(incoming.delivered, true)) return;
  events_.push_back(incoming.received_event(rank_));
}

void ReceiveSide::claim(const Incoming& incoming) {
  auto [first, last] = unclaimed_.equal_range(incoming.open().tag);
  auto own = std::find_if(first, last, [&](auto& entry) { return entry.second == incoming.open().id; });
  if (own != last) unclaimed_.erase(own);
}

void ReceiveSide::release(TransferId id) {
  claim(*find(id));
  transfers_.erase(id);
}

void ReceiveSide::on_close_acked(const Control& control) {
  Incoming* incoming = find(control.id);
  if (!incoming || !incoming->closed() || !incoming->on_close_acked(control.part)) return;
  if (incoming->delivered) release(control.id);
}

// A hint: when it arrives before its OPEN it is ignored, and the deadline decides.
void ReceiveSide::on_once(Time now, const OnceFrame& once) {
  Incoming* incoming = find(once.id);
  if (!incoming || incoming->closed()) return;
  incoming->on_once(now);
  if (incoming->has_destination()) check(now, *incoming);
}

void ReceiveSide::on_abort(Time now, const AbortFrame& abort) {
  Incoming* incoming = find(abort.id);
  if (!incoming) {
    // Nothing of it is stored here, and an OPEN that arrives later must be ignored. The credit is returned however late
    // this is: an id too old for the window was perhaps never announced, and a GRANT that returns nothing has no
    // effect.
    seen_ids_.insert(abort.id);
    control_.push_back({FrameType::grant, 0, abort.id, 0});
    return;
  }
  if (incoming->request()) {
    if (!incoming->closed()) close(now, *incoming, CloseReason::cancelled);
    return;
  }
  // No receive was posted for it: drop it and return its credit.
  if (incoming->staged() && !incoming->delivered) credit_ += credit_cost(incoming->open().size);
  control_.push_back({FrameType::grant, 0, abort.id, 0});
  release(abort.id);
}

bool ReceiveSide::cancel(Time now, std::uint64_t token) {
  auto request = std::find_if(posted_.begin(), posted_.end(), [&](auto& r) { return r.token == token; });
  if (request != posted_.end()) {
    deadlines_.on_withdrawn(rank_, request->tag);
    posted_.erase(request);
    return true;
  }
  for (auto& [id, transfer] : transfers_) {
    Incoming& incoming = *transfer;
    if (!incoming.request() || incoming.request()->token != token || incoming.closed()) continue;
    incoming.delivered = true;
    incoming.set_destination(nullptr);
    close(now, incoming, CloseReason::cancelled);
    return true;
  }
  return false;
}

Time ReceiveSide::deadline() const {
  Time earliest = kNever;
  for (TransferId id : timed_)
    if (Incoming* incoming = find(id)) earliest = std::min(earliest, incoming->deadline(allowance(*incoming)));
  return earliest;
}

void ReceiveSide::on_deadline(Time now) {
  std::erase_if(timed_, [&](TransferId id) { return !find(id) || find(id)->closed(); });
  for (TransferId id : timed_) {
    Incoming& incoming = *find(id);
    if (incoming.has_destination()) check(now, incoming);
  }
}

void ReceiveSide::hand_over(std::vector<ReceiveRequest>& requests) {
  for (const ReceiveRequest& request : posted_) deadlines_.on_withdrawn(rank_, request.tag);
  requests.insert(requests.end(), posted_.begin(), posted_.end());
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
    deadlines_.on_withdrawn(rank_, request.tag);
  };
  for (const ReceiveRequest& request : posted_) fail(request, request.size);
  posted_.clear();
  for (auto& [id, incoming] : transfers_)
    if (incoming->request() && !incoming->delivered) fail(*incoming->request(), incoming->open().size);
  transfers_.clear();
  unclaimed_.clear();
  timed_.clear();
}

}  // namespace gradwire::ltp
