// SendSide: all outgoing transfers of a connection: which one sends next, what it may send before a receive is posted,
// and the result from its receiver. Flow control is docs/ltp.md section 7: GRANT decides, POSTED is a hint that saves a
// round trip, credit covers what is sent before both, and a transfer that may not send blocks no other.
#pragma once
#include <deque>
#include <memory>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "core/link_stats.h"
#include "ltp/control.h"
#include "ltp/outgoing.h"

namespace gradwire::ltp {

class SendSide {
 public:
  SendSide(std::uint32_t rank, std::uint64_t peer_credit, ControlQueue& control, std::deque<Event>& events,
           LinkCounters& counters, TransferId first = 0)
      : rank_(rank), credit_(peer_credit), control_(control), events_(events), counters_(counters), next_id_(first) {}

  void submit(Time now, SendRequest request);
  // Drops the transfer; its buffer is not read again. False when there is none with this token.
  bool cancel(std::uint64_t token);
  // The transfer continues from a copy of what is not acknowledged: the caller's buffer is not read again.
  void detach(std::uint64_t token);
  // The transfer that sends next, or none. `payload` is the present payload of a full packet; new transfers are cut by
  // it.
  Outgoing* ready(std::size_t payload);
  // After a piece of `transfer` was put into a packet.
  void on_piece(Outgoing& transfer, const Outgoing::Piece& piece);
  // A transfer still open, by id.
  Outgoing* find(TransferId id);

  void on_open_acked(TransferId id);
  void on_acked(Time now, TransferId id, std::uint32_t first, std::uint32_t count);
  void on_lost(TransferId id, std::uint32_t first, std::uint32_t count);
  void on_posted(const PostedFrame& posted);
  void on_grant(const GrantFrame& grant);
  void on_hold(const HoldFrame& hold);
  void on_close(Time now, const CloseFrame& close);
  void fail_all(Time now, Failure failure);
  // Every unfinished request, those of one tag in order.
  void hand_over(std::vector<SendRequest>& requests) const;
  bool empty() const { return transfers_.empty() && waiting_.empty(); }

 private:
  struct Waiting {
    SendRequest request;
    Time submitted;
  };

  void open_waiting(std::size_t payload);
  bool may_open(const SendRequest& request, Standing& standing);
  bool behind_its_tag(std::uint64_t tag) const;
  void open(Waiting& waiting, Standing standing, std::size_t payload);
  std::size_t count_sending() const;
  void return_credit(TransferId id);
  void remove(TransferId id);
  void finish(Time now, Outgoing& transfer, Failure failure = Failure::none);

  std::uint32_t rank_;
  std::uint64_t credit_;  // of the peer, not yet used by transfers sent ahead of their grant
  ControlQueue& control_;
  std::deque<Event>& events_;
  LinkCounters& counters_;
  std::deque<Waiting> waiting_;  // not announced yet
  std::unordered_map<TransferId, std::unique_ptr<Outgoing>> transfers_;
  std::set<TransferId> order_;                                 // ids of the transfers, in order of announcement
  std::set<TransferId> sending_;                               // those that may send and perhaps have something to send
  std::set<TransferId> unconfirmed_;                           // those whose OPEN is not acknowledged
  std::size_t held_ = 0;                                       // announced, may not send before GRANT
  std::unordered_map<std::uint64_t, TransferId> last_of_tag_;  // among the unconfirmed: tag -> newest id
  std::unordered_map<TransferId, std::uint64_t> ahead_;        // sent ahead of their grant: id -> credit held
  std::deque<std::uint64_t> posted_;                           // tags of the peer's posted receives, as far as known
  bool changed_ = false;                                       // a waiting transfer may be able to open
  TransferId next_id_;
};

}  // namespace gradwire::ltp
