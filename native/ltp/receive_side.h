// All incoming transfers of a connection: receives posted by the application, transfers announced by the peer, and the
// pairing of the two by tag. Holds at most `credit` bytes of transfers that nobody has asked for yet.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <unordered_map>

#include "ltp/control.h"
#include "ltp/incoming.h"
#include "ltp/seen.h"
#include "ltp/stats.h"

namespace gradwire::ltp {

class ReceiveSide {
 public:
  ReceiveSide(std::uint32_t rank, const Settings& settings, ControlQueue& control, std::deque<Event>& events, Counters& counters)
      : rank_(rank), credit_(settings.credit), early_close_(settings), control_(control), events_(events), counters_(counters) {}

  void post(Time now, const ReceiveRequest& request);
  bool cancel(Time now, std::uint64_t token);

  // False when far too many are open already: the OPEN must come again.
  bool on_open(Time now, const OpenFrame& open);
  enum class Verdict { taken, unwanted, broken };
  // `unwanted`: not announced or not granted; the packet must not be acknowledged, so that it comes again.
  Verdict on_data(Time now, const DataFrame& data);
  void on_once(Time now, const OnceFrame& once);
  void on_abort(Time now, const AbortFrame& abort);
  void on_close_acked(const Control& control);

  Time deadline() const;
  void on_deadline(Time now);
  void fail_all(Failure failure);
  // Receives that no transfer was announced for.
  void hand_over(std::vector<ReceiveRequest>& requests) const { requests.insert(requests.end(), posted_.begin(), posted_.end()); }

  // For building and requeueing control frames.
  const Incoming* closing(TransferId id) const;
  const ReceiveRequest* posted(std::uint64_t token) const;
  // Announced, and without a place for its data.
  bool held(TransferId id) const;

 private:
  Incoming* find(TransferId id) const;
  void pair(Time now, Incoming& incoming, const ReceiveRequest& request);
  void check(Time now, Incoming& incoming);
  void close(Time now, Incoming& incoming, CloseReason reason);
  void deliver(Incoming& incoming);
  void claim(const Incoming& incoming);
  void release(TransferId id);

  std::uint32_t rank_;
  std::uint64_t credit_;
  EarlyClose early_close_;
  ControlQueue& control_;
  std::deque<Event>& events_;
  Counters& counters_;
  std::deque<ReceiveRequest> posted_;
  std::unordered_map<TransferId, std::unique_ptr<Incoming>> transfers_;
  std::multimap<std::uint64_t, TransferId> unclaimed_;  // tag -> id, in order of announcement
  std::deque<TransferId> timed_;                        // tolerant ones that may close by time
  Seen<1024> seen_ids_;
};

}  // namespace gradwire::ltp
