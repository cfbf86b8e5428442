#include "ltp/outgoing.h"

#include <algorithm>

#include "ltp/packet.h"

namespace gradwire::ltp {
namespace {

constexpr std::size_t kCountsTried = 4;

// The payload of a full packet of this transfer.
std::size_t payload_of(const SendRequest& request, std::size_t payload) {
  return payload - (is_weighted(request) ? kWeightedHeader - kDataHeader : 0);
}

}  // namespace

// Of a few counts of grains in a full packet, the one that fills it best.
std::uint16_t choose_grain(const SendRequest& request, std::size_t payload) {
  if (request.record) return request.record;
  // A grain must fit the smallest MTU, or a transfer could never finish after the MTU shrinks.
  std::size_t header = is_weighted(request) ? kWeightedHeader : kDataHeader;
  std::size_t most = (kBaseDatagram - kSealedOverhead - header) / request.element * request.element;
  std::size_t fewest = std::max(kGrainsPerBlock, payload / most + 1), best = 0, best_filled = 0;
  for (std::size_t count = fewest + kCountsTried; count-- > fewest;) {
    std::size_t grain =
        std::clamp<std::size_t>(payload / count / request.element * request.element, request.element, most);
    std::size_t filled = payload / grain * grain;
    if (filled < best_filled) continue;
    best = grain;
    best_filled = filled;
  }
  return static_cast<std::uint16_t>(best);
}

Outgoing::Outgoing(TransferId id, SendRequest request, std::size_t payload, Time now)
    : id_(id),
      request_(std::move(request)),
      grain_(choose_grain(request_, payload_of(request_, payload))),
      block_grains_(static_cast<std::uint32_t>(std::max<std::size_t>(1, payload_of(request_, payload) / grain_))),
      grains_((request_.size - 1) / grain_ + 1),
      blocks_((grains_ - 1) / block_grains_ + 1),
      order_(request_, blocks_, std::uint64_t{block_grains_} * grain_),
      critical_(grains_),
      acked_(grains_),
      again_(blocks_ * block_grains_),
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

template <class F>
void Outgoing::each_block(std::uint64_t first, std::uint64_t count, F visit) const {
  for (std::uint64_t at = first, end = first + count; at < end;) {
    std::uint64_t block = at / block_grains_, inside = at % block_grains_;
    std::uint64_t part = std::min(end - at, block_grains_ - inside);
    visit(at, part, order_.rank(block) * block_grains_ + inside);
    at += part;
  }
}

Outgoing::Piece Outgoing::take(std::uint64_t first, std::uint64_t most, std::size_t room) {
  Piece piece;
  std::uint64_t count = std::min<std::uint64_t>(most, room / grain_);
  std::uint64_t start = first * grain_;
  std::uint64_t end = std::min(request_.size, (first + count) * grain_);
  piece.first = static_cast<std::uint32_t>(first);
  piece.count = static_cast<std::uint16_t>(count);
  piece.bytes = Bytes(request_.data + start, end - start);
  if (!order_.banded()) return piece;
  double share = 0;
  each_block(first, count, [&](std::uint64_t grain, std::uint64_t part, std::uint64_t) {
    std::uint64_t block = grain / block_grains_;
    std::uint64_t whole = std::min<std::uint64_t>(block_grains_, grains_ - block * block_grains_);
    share += order_.share(block) * static_cast<double>(part) / static_cast<double>(whole);
  });
  piece.share = write_share(share);
  return piece;
}

bool Outgoing::next_critical(std::size_t room, Piece& piece) {
  if (!critical_.count()) return false;
  std::uint64_t first = critical_.next_set(critical_at_);
  if (first == critical_.size()) first = critical_.next_set(0);
  std::uint64_t run = std::min<std::uint64_t>(critical_.next_clear(first) - first, block_grains_);
  piece = take(first, run, room);
  critical_.clear(first, piece.count);
  critical_at_ = first + piece.count;
  return true;
}

bool Outgoing::next_again(std::size_t room, Piece& piece) {
  if (!again_.count()) return false;
  std::uint64_t first = again_.next_set(again_at_);
  if (first == again_.size()) first = again_.next_set(0);
  std::uint64_t inside = first % block_grains_;
  std::uint64_t run = std::min<std::uint64_t>(again_.next_clear(first) - first, block_grains_ - inside);
  piece = take(order_.block_of_rank(first / block_grains_) * block_grains_ + inside, run, room);
  again_.clear(first, piece.count);
  again_at_ = first + piece.count;
  return piece.again = true;
}

// Critical blocks have their own queue. They are skipped as soon as they are next, so that `next_block_` shows whether
// a block is left: an order that ends in a critical block ends with the one before it.
void Outgoing::skip_critical_blocks() {
  while (next_block_ < blocks_ && is_critical(order_.block(next_block_) * block_grains_)) ++next_block_;
}

bool Outgoing::start_block() {
  if (next_block_ == blocks_) return false;
  run_first_ = order_.block(next_block_++) * block_grains_;
  run_left_ = std::min<std::uint64_t>(block_grains_, grains_ - run_first_);
  skip_critical_blocks();
  return true;
}

bool Outgoing::next(std::size_t room, Piece& piece) {
  if (room < grain_ && room < request_.size) return false;
  room = std::max<std::size_t>(room, grain_);
  if (next_critical(room, piece)) return true;
  // What is lost and belongs to a band of more energy comes before the next block.
  bool urgent =
      !run_left_ && again_.count() && again_.next_set(again_at_) < order_.more_important(next_block_) * block_grains_;
  if (!urgent && (run_left_ || start_block())) {
    piece = take(run_first_, run_left_, room);
    run_first_ += piece.count;
    run_left_ -= piece.count;
    return true;
  }
  return next_again(room, piece);
}

void Outgoing::on_acked(std::uint32_t first, std::uint32_t count) {
  acked_.set(first, count);
  critical_.clear(first, count);
  if (again_.count())
    each_block(first, count, [&](std::uint64_t, std::uint64_t part, std::uint64_t rank) { again_.clear(rank, part); });
}

void Outgoing::on_lost(std::uint32_t first, std::uint32_t count) {
  each_block(first, count, [&](std::uint64_t run, std::uint64_t part, std::uint64_t rank) {
    for (std::uint64_t i = 0; i < part; ++i) {
      if (acked_.test(run + i)) continue;
      if (is_critical(run + i)) {
        critical_.set(run + i, 1);
      } else {
        again_.set(rank + i, 1);
        if (order_.banded()) again_at_ = std::min(again_at_, rank + i);
      }
    }
  });
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
