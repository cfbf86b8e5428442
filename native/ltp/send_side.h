// All outgoing transfers of a connection: which one speaks next, what it may send before a buffer waits for it, and
// what its receiver said when it closed. Transfers are served in the order of submission.
#pragma once
#include <array>
#include <deque>
#include <memory>
#include <unordered_map>

#include "ltp/control.h"
#include "ltp/outgoing.h"
#include "ltp/stats.h"

namespace gradwire::ltp {

// Open at the same time, per direction; more wait their turn. Also the width of the table of transfer slots.
inline constexpr std::size_t kTransferSlots = 256;

class SendSide {
 public:
  SendSide(std::uint32_t rank, std::uint64_t peer_credit, ControlQueue& control, std::deque<Event>& events, Counters& counters)
      : rank_(rank), credit_(peer_credit), control_(control), events_(events), counters_(counters) {}

  void submit(Time now, SendRequest request) { waiting_.push_back({std::move(request), now}); }
  // Forgets the transfer; its buffer is not read again. False when there is none with this token.
  bool cancel(std::uint64_t token);
  // The transfer whose turn it is, or none. `payload` is what a full packet carries now; it shapes new transfers.
  Outgoing* ready(std::size_t payload);
  // After a piece of `transfer` was put into a packet.
  void on_piece(Outgoing& transfer, const Outgoing::Piece& piece);
  // A transfer still open, by id.
  Outgoing* find(std::uint32_t id);

  void on_acked(Time now, std::uint32_t id, std::uint32_t first, std::uint32_t count);
  void on_lost(std::uint32_t id, std::uint32_t first, std::uint32_t count);
  void on_posted(const PostedFrame& posted);
  void on_grant(const GrantFrame& grant);
  void on_close(Time now, const CloseFrame& close);
  void fail_all(Time now, Failure failure);
  bool empty() const { return order_.empty() && waiting_.empty(); }

 private:
  void activate(std::size_t payload);
  void grant(Outgoing& transfer);
  void finish(Time now, Outgoing& transfer, Failure failure = Failure::none);

  std::uint32_t rank_;
  std::uint64_t credit_;  // of the peer, not yet used by transfers sent ahead of their grant
  ControlQueue& control_;
  std::deque<Event>& events_;
  Counters& counters_;
  std::array<std::unique_ptr<Outgoing>, kTransferSlots> slots_;
  std::deque<std::uint32_t> order_;
  struct Waiting {
    SendRequest request;
    Time submitted;
  };
  std::deque<Waiting> waiting_;
  std::unordered_map<std::uint32_t, std::uint64_t> ahead_;  // sent ahead of their grant: id -> bytes of credit held
  std::deque<PostedFrame> posted_;                          // receives that wait for a transfer of ours
  std::uint32_t next_id_ = 0;
};

}  // namespace gradwire::ltp
