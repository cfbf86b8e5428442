#include "ltp/outgoing.h"

#include <algorithm>

#include "ltp/packet.h"

namespace gradwire::ltp {

std::uint16_t choose_grain(const SendRequest& request, std::size_t payload) {
  if (request.record) return request.record;
  std::size_t share = payload / kGrainsPerBlock / request.element * request.element;
  // A grain must fit the smallest MTU, or a transfer could never finish after the MTU shrinks.
  std::size_t most = (kBaseDatagram - kSealedOverhead - kDataHeader) / request.element * request.element;
  return static_cast<std::uint16_t>(std::clamp<std::size_t>(share, request.element, most));
}

Outgoing::Outgoing(TransferId id, SendRequest request, std::size_t payload, Time now)
    : id_(id),
      request_(std::move(request)),
      grain_(choose_grain(request_, payload)),
      block_grains_(static_cast<std::uint32_t>(std::max<std::size_t>(1, payload / grain_))),
      grains_((request_.size - 1) / grain_ + 1),
      blocks_((grains_ - 1) / block_grains_ + 1),
      order_(blocks_, request_.seed),
      critical_(grains_),
      again_(grains_),
      acked_(grains_),
      submitted_(now) {
  for (const ByteRange& range : request_.critical) {
    // Whole blocks, so that the first-transmission queue can skip them block by block.
    std::uint64_t block = std::uint64_t{block_grains_} * grain_;
    std::uint64_t first = range.offset / block * block_grains_;
    std::uint64_t end = std::min(grains_, ((range.offset + range.length - 1) / block + 1) * block_grains_);
    critical_ranges_.push_back({static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(end - first)});
    critical_.set(first, end - first);
  }
  skip_critical_blocks();
}

bool Outgoing::is_critical(std::uint64_t grain) const {
  for (const GrainRange& range : critical_ranges_)
    if (grain >= range.first && grain - range.first < range.count) return true;
  return false;
}

Outgoing::Piece Outgoing::take(std::uint64_t first, std::uint64_t most, std::size_t room) {
  Piece piece;
  std::uint64_t count = std::min<std::uint64_t>(most, room / grain_);
  std::uint64_t start = first * grain_;
  std::uint64_t end = std::min(request_.size, (first + count) * grain_);
  piece.first = static_cast<std::uint32_t>(first);
  piece.count = static_cast<std::uint16_t>(count);
  piece.bytes = Bytes(request_.data + start, end - start);
  return piece;
}

bool Outgoing::next_from(Bitmap& queue, std::uint64_t& cursor, std::size_t room, Piece& piece) {
  if (!queue.count()) return false;
  std::uint64_t first = queue.next_set(cursor);
  if (first == queue.size()) first = queue.next_set(0);
  std::uint64_t run = std::min<std::uint64_t>(queue.next_clear(first) - first, block_grains_);
  piece = take(first, run, room);
  queue.clear(first, piece.count);
  cursor = first + piece.count;
  return true;
}

// Critical blocks have their own queue. They are skipped as soon as they are next, so that `next_block_` shows whether
// a block is left: an order that ends in a critical block ends with the one before it.
void Outgoing::skip_critical_blocks() {
  while (next_block_ < blocks_ && is_critical(order_(next_block_) * block_grains_)) ++next_block_;
}

bool Outgoing::start_block() {
  if (next_block_ == blocks_) return false;
  run_first_ = order_(next_block_++) * block_grains_;
  run_left_ = std::min<std::uint64_t>(block_grains_, grains_ - run_first_);
  skip_critical_blocks();
  return true;
}

bool Outgoing::next(std::size_t room, Piece& piece) {
  if (room < grain_ && room < request_.size) return false;
  room = std::max<std::size_t>(room, grain_);
  if (next_from(critical_, critical_at_, room, piece)) return true;
  if (run_left_ || start_block()) {
    piece = take(run_first_, run_left_, room);
    run_first_ += piece.count;
    run_left_ -= piece.count;
    return true;
  }
  piece.again = true;
  if (!next_from(again_, again_at_, room, piece)) return false;
  piece.again = true;
  return true;
}

void Outgoing::on_acked(std::uint32_t first, std::uint32_t count) {
  acked_.set(first, count);
  again_.clear(first, count);
  critical_.clear(first, count);
}

void Outgoing::on_lost(std::uint32_t first, std::uint32_t count) {
  for (std::uint64_t grain = first; grain < std::uint64_t{first} + count; ++grain)
    if (!acked_.test(grain)) (is_critical(grain) ? critical_ : again_).set(grain, 1);
}

bool Outgoing::on_close(const CloseFrame& close) {
  if (close_parts_.empty()) {
    close_parts_.resize(close.parts);
    close_left_ = close.parts;
    close_reason_ = close.reason;
    closed_received_ = close.received;
    close_missing_ = Bitmap(grains_);
  }
  if (close.parts != close_parts_.size() || close_parts_[close.part]) return false;
  close_parts_[close.part] = true;
  for (std::size_t i = 0; i < close.count; ++i)
    if (std::uint64_t{close.missing[i].first} + close.missing[i].count <= grains_)
      close_missing_.set(close.missing[i].first, close.missing[i].count);  // a set: a peer's ranges may overlap
  return --close_left_ == 0;
}

OpenFrame Outgoing::open_frame() const {
  OpenFrame open;
  open.id = id_;
  open.tag = request_.tag;
  open.size = request_.size;
  open.grain = grain_;
  open.element = request_.record ? request_.record : request_.element;
  open.tolerance = request_.tolerance;
  open.least = request_.least.value_or(0);
  open.standing = standing;
  open.critical_count = static_cast<std::uint8_t>(critical_ranges_.size());
  std::copy(critical_ranges_.begin(), critical_ranges_.end(), open.critical.begin());
  return open;
}

ByteRange Outgoing::bytes_between(std::uint64_t first, std::uint64_t end) const {
  return {first * grain_, std::min(request_.size, end * grain_) - first * grain_};
}

void Outgoing::detach() {
  std::vector<ByteRange> unacked;
  for (std::uint64_t first = acked_.next_clear(0); first < acked_.size();) {
    std::uint64_t end = acked_.next_set(first);
    unacked.push_back(bytes_between(first, end));
    first = acked_.next_clear(end);
  }
  request_.detach(unacked);
}

std::vector<ByteRange> Outgoing::missing() const {
  std::vector<ByteRange> ranges;
  for (std::uint64_t first = close_missing_.next_set(0); first < close_missing_.size();) {
    std::uint64_t end = close_missing_.next_clear(first);
    ranges.push_back(bytes_between(first, end));
    first = close_missing_.next_set(end);
  }
  return ranges;
}

}  // namespace gradwire::ltp
