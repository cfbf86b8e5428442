#include "ltp/incoming.h"

#include <algorithm>
#include <cstring>

namespace gradwire::ltp {
namespace {

// Reordered packets are at most this part of a round trip apart: senders of QUIC and TCP wait a quarter or an eighth of
// it before they declare a packet lost.
constexpr int kReorderShare = 8;
// No new data for this part of the time so far is a stall. Retransmission leaves a gap of a round trip, which is a
// smaller part of any transfer that has reached its deadline.
constexpr int kStallShare = 4;

}  // namespace

Incoming::Incoming(const OpenFrame& open) : open_(open), grains_((open.size - 1) / open.grain + 1) {}

std::uint64_t Incoming::bytes_of(std::uint64_t first, std::uint64_t count) const {
  return std::min(open_.size, (first + count) * open_.grain) - first * open_.grain;
}

bool Incoming::fits(const DataFrame& data) const {
  if (data.first >= grains_) return false;
  std::uint64_t start = std::uint64_t{data.first} * open_.grain, end = start + data.bytes.size();
  return end == open_.size || (end < open_.size && data.bytes.size() % open_.grain == 0);
}

std::uint64_t Incoming::accept(Time now, const DataFrame& data) {
  if (!started_) started_ = now;
  std::uint64_t count = (data.bytes.size() - 1) / open_.grain + 1;
  // Writing a grain twice writes the same bytes: cheaper than testing which ones are new.
  std::memcpy(destination_ + std::uint64_t{data.first} * open_.grain, data.bytes.data(), data.bytes.size());
  std::uint64_t fresh = arrived_.set(data.first, count);
  if (fresh) newest_ = now;
  if (data.share)
    energy_ = energy_.value_or(0) + read_share(*data.share) * static_cast<double>(fresh) / static_cast<double>(count);
  if (fresh && latest_ == kNever && now >= *started_ + limits_.deadline)
    latest_ = *started_ + to_time(EarlyClose::kPatience * static_cast<double>(projected() - *started_));
  return count - fresh;
}

void Incoming::stage() {
  arrived_ = Bitmap(grains_);
  staging_ = std::make_unique<std::uint8_t[]>(open_.size);
  destination_ = staging_.get();
}

void Incoming::match(const ReceiveRequest& request) {
  request_ = request;
  if (staging_) {
    // Closed transfers have their gaps zeroed already; open ones zero them when they close.
    std::memcpy(request.data, staging_.get(), open_.size);
    staging_.reset();
  }
  // Only now: a peer cannot cause an allocation for a size that no receive here asked for.
  if (!arrived_.size()) arrived_ = Bitmap(grains_);
  destination_ = closed() ? nullptr : request.data;
  if (request.threshold > 0) {
    limits_.threshold = request.threshold;
    spent_ = kNever;
  }
  if (request.deadline > 0) {
    limits_.deadline = request.deadline;
    limits_.extends = false;
  }
  limits_.threshold = std::min(limits_.threshold, limits_.deadline);
}

bool Incoming::critical_complete() const {
  for (std::size_t i = 0; i < open_.critical_count; ++i) {
    std::uint64_t end = std::uint64_t{open_.critical[i].first} + open_.critical[i].count;
    if (arrived_.next_clear(open_.critical[i].first) < end) return false;
  }
  return true;
}

std::uint64_t Incoming::bytes_arrived() const {
  if (!arrived_.count()) return 0;
  std::uint64_t last = open_.grain - (grains_ * open_.grain - open_.size);
  bool have_last = arrived_.test(grains_ - 1);
  return arrived_.count() * open_.grain - (have_last ? open_.grain - last : 0);
}

void Incoming::on_once(Time now) {
  bool own_limit = request_ && request_->threshold > 0;
  if (spent_ == kNever && open_.rtprop_us > 0 && !own_limit)
    spent_ = now + Time{open_.rtprop_us} * kMicrosecond / kReorderShare;
}

// Of the bytes and, where it is known, of the energy.
bool Incoming::has(std::uint32_t fraction) const {
  if (energy_ && *energy_ * kWhole < static_cast<double>(fraction)) return false;
  return static_cast<double>(bytes_arrived()) * kWhole >=
         static_cast<double>(fraction) * static_cast<double>(open_.size);
}

// When the fraction p will have arrived, at the rate of arrivals so far.
Time Incoming::projected() const {
  double wanted = static_cast<double>(open_.tolerance) / kWhole * static_cast<double>(open_.size);
  double times = wanted / static_cast<double>(std::max<std::uint64_t>(bytes_arrived(), 1));
  return *started_ + to_time(static_cast<double>(newest_ - *started_) * times) + limits_.slack;
}

std::optional<CloseReason> Incoming::reason_to_close(Time now, Time allowance) const {
  if (arrived_.count() == grains_) return CloseReason::complete;
  Time due = deadline(allowance);
  if (due > now) return std::nullopt;
  return enough() ? CloseReason::threshold : CloseReason::deadline;
}

Time Incoming::deadline(Time allowance) const {
  if (closed() || !has_destination() || open_.tolerance == kWhole || !started_ || !critical_complete()) return kNever;
  Time last = *started_ + limits_.deadline;
  Time shared = allowance == kNever ? kNever : *started_ + allowance + limits_.slack;
  if (enough()) return std::min({last, *started_ + limits_.threshold, spent_, shared});
  if (!has(open_.least)) return kNever;
  if (!limits_.extends) return last;
  Time stalled = newest_ + std::max(limits_.slack, (newest_ - *started_) / kStallShare);
  return std::min(shared, std::max(last, std::min({projected(), stalled, latest_})));
}

void Incoming::close(Time now, CloseReason reason) {
  reason_ = reason;
  elapsed_ = started_ ? now - *started_ : 0;
  if (!arrived_.size()) missing_.push_back({0, static_cast<std::uint32_t>(grains_)});
  for (std::uint64_t first = arrived_.next_clear(0); first < arrived_.size();) {
    std::uint64_t end = arrived_.next_set(first);
    missing_.push_back({static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(end - first)});
    if (destination_) std::memset(destination_ + first * open_.grain, 0, bytes_of(first, end - first));
    first = arrived_.next_clear(end);
  }
  parts_acked_.resize(close_parts());
  close_left_ = parts_acked_.size();
  // A staged transfer keeps its memory until a receive is posted.
  destination_ = nullptr;
}

std::uint16_t Incoming::close_parts() const {
  return static_cast<std::uint16_t>(missing_.empty() ? 1 : (missing_.size() - 1) / kCloseRanges + 1);
}

CloseFrame Incoming::close_frame(std::uint16_t part) const {
  CloseFrame close;
  close.id = open_.id;
  close.reason = *reason_;
  close.received = bytes_arrived();
  close.part = part;
  close.parts = close_parts();
  std::size_t from = part * kCloseRanges;
  close.count = static_cast<std::uint16_t>(std::min(kCloseRanges, missing_.size() - std::min(from, missing_.size())));
  std::copy_n(missing_.begin() + static_cast<std::ptrdiff_t>(from), close.count, close.missing.begin());
  return close;
}

bool Incoming::on_close_acked(std::uint16_t part) {
  if (part >= parts_acked_.size() || parts_acked_[part]) return false;
  parts_acked_[part] = true;
  return --close_left_ == 0;
}

Event Incoming::received_event(std::uint32_t rank) const {
  Event event;
  event.type = EventType::received;
  event.rank = rank;
  event.token = request_->token;
  event.reason = *reason_;
  event.size = open_.size;
  event.arrived = bytes_arrived();
  event.elapsed = elapsed_;
  for (const GrainRange& range : missing_)
    event.missing.push_back({std::uint64_t{range.first} * open_.grain, bytes_of(range.first, range.count)});
  return event;
}

}  // namespace gradwire::ltp
