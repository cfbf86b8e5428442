// Outgoing: one transfer being sent, as three queues (critical, first transmission, retransmission) over grains.
// A grain is the unit of delivery: a whole number of elements, or one record. Position follows from the grain number.
#pragma once
#include <optional>

#include "ltp/bitmap.h"
#include "ltp/frame.h"
#include "ltp/send_order.h"

namespace gradwire::ltp {

// At least this many grains in a full packet: it can be split when the MTU shrinks, and the bitmaps stay small.
inline constexpr std::size_t kGrainsPerBlock = 3;

// The grain of a transfer, given the present payload of a full packet.
std::uint16_t choose_grain(const SendRequest& request, std::size_t payload);

class Outgoing {
 public:
  Outgoing(TransferId id, SendRequest request, std::size_t payload, Time now);

  struct Piece {
    std::uint32_t first = 0;
    std::uint16_t count = 0;
    Bytes bytes;
    bool again = false;
    std::optional<std::uint16_t> share;  // as in WEIGHTED
  };
  // The next run of grains that fits into `room` bytes: critical ones, then each block once in the order of SendOrder,
  // then lost ones. What is lost and worth more than the next block is sent again before it.
  bool next(std::size_t room, Piece& piece);
  bool pending() const { return critical_.count() || next_block_ < blocks_ || run_left_ || again_.count(); }
  // Of the frame that carries a piece.
  std::size_t header() const { return order_.banded() ? kWeightedHeader : kDataHeader; }
  // Every grain was sent once; what follows is retransmission.
  bool all_sent_once() const { return !critical_.count() && next_block_ == blocks_ && !run_left_; }
  void on_acked(std::uint32_t first, std::uint32_t count);
  void on_lost(std::uint32_t first, std::uint32_t count);
  bool all_acked() const { return acked_.count() == acked_.size(); }
  // Collects the parts of CLOSE; true once all have arrived.
  bool on_close(const CloseFrame& close);

  // The caller's buffer is not read any more: what is not acknowledged yet is copied.
  void detach();
  OpenFrame open_frame() const;
  std::vector<ByteRange> missing() const;
  TransferId id() const { return id_; }
  const SendRequest& request() const { return request_; }
  Time submitted() const { return submitted_; }
  std::size_t block_bytes() const { return std::size_t{grain_} * block_grains_; }
  std::uint64_t closed_received() const { return closed_received_; }
  CloseReason close_reason() const { return close_reason_; }

  // Flow control and announcement, maintained by the send side. `granted`: may send. `met`: a POSTED for it arrived.
  // `decided`: GRANT arrived; a reordered HOLD does not revoke it.
  Standing standing = Standing::waiting;
  bool granted = false, met = false, decided = false, open_acked = false, once_sent = false;
  std::uint32_t packets = 0;

 private:
  Piece take(std::uint64_t first, std::uint64_t most, std::size_t room);
  bool next_critical(std::size_t room, Piece& piece);
  bool next_again(std::size_t room, Piece& piece);
  // Calls visit(grain, count, rank of that grain) for the part of the run in each block.
  template <class F>
  void each_block(std::uint64_t first, std::uint64_t count, F visit) const;
  bool is_critical(std::uint64_t grain) const;
  ByteRange bytes_between(std::uint64_t first, std::uint64_t end) const;
  bool start_block();
  void skip_critical_blocks();

  TransferId id_;
  SendRequest request_;
  std::uint16_t grain_;
  std::uint32_t block_grains_;
  std::uint64_t grains_, blocks_;
  SendOrder order_;
  std::uint64_t next_block_ = 0, run_first_ = 0, run_left_ = 0;
  std::vector<GrainRange> critical_ranges_;
  Bitmap critical_, acked_;
  Bitmap again_;  // by rank: with energies the most important first, else in turn
  std::uint64_t critical_at_ = 0, again_at_ = 0;
  Time submitted_;
  std::vector<bool> close_parts_;
  std::size_t close_left_ = 0;
  Bitmap close_missing_;
  std::uint64_t closed_received_ = 0;
  CloseReason close_reason_ = CloseReason::complete;
};

}  // namespace gradwire::ltp
