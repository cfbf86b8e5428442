// ReceiveSide: all incoming transfers of a connection: receives posted by the application, transfers announced by the
// peer, and their pairing by tag. Stores at most `credit` bytes of transfers without a posted receive.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <unordered_map>

#include "core/link_stats.h"
#include "ltp/control.h"
#include "ltp/deadlines.h"
#include "ltp/incoming.h"
#include "ltp/replay_window.h"

namespace gradwire::ltp {

class ReceiveSide {
 public:
  ReceiveSide(std::uint32_t rank, const Settings& settings, Deadlines& deadlines, ControlQueue& control,
              std::deque<Event>& events, LinkCounters& counters)
      : rank_(rank),
        credit_(settings.credit),
        deadlines_(deadlines),
        control_(control),
        events_(events),
        counters_(counters) {}

  void post(Time now, const ReceiveRequest& request);
  bool cancel(Time now, std::uint64_t token);

  // False when too many are open: the OPEN must be sent again.
  bool on_open(Time now, const OpenFrame& open);
  enum class DataResult { taken, unwanted, invalid };
  // `unwanted`: not announced or not granted; the packet must not be acknowledged, so that it is sent again.
  DataResult on_data(Time now, const DataFrame& data);
  void on_once(Time now, const OnceFrame& once);
  void on_abort(Time now, const AbortFrame& abort);
  void on_close_acked(const Control& control);

  Time deadline() const;
  void on_deadline(Time now);
  void fail_all(Failure failure);
  // Posted receives without an announced transfer.
  void hand_over(std::vector<ReceiveRequest>& requests);

  // For building and requeueing control frames.
  const Incoming* closing(TransferId id) const;
  const ReceiveRequest* posted(std::uint64_t token) const;
  // Announced, and without a buffer for its data.
  bool held(TransferId id) const;

 private:
  Incoming* find(TransferId id) const;
  void pair(Time now, Incoming& incoming, const ReceiveRequest& request);
  void check(Time now, Incoming& incoming);
  void close(Time now, Incoming& incoming, CloseReason reason);
  Time allowance(const Incoming& incoming) const;
  void deliver(Incoming& incoming);
  void claim(const Incoming& incoming);
  void release(TransferId id);

  std::uint32_t rank_;
  std::uint64_t credit_;
  Deadlines& deadlines_;
  ControlQueue& control_;
  std::deque<Event>& events_;
  LinkCounters& counters_;
  std::deque<ReceiveRequest> posted_;
  std::unordered_map<TransferId, std::unique_ptr<Incoming>> transfers_;
  std::multimap<std::uint64_t, TransferId> unclaimed_;  // tag -> id, in order of announcement
  std::deque<TransferId> timed_;                        // tolerant ones that may close at a deadline
  ReplayWindow<1024> seen_ids_;
};

}  // namespace gradwire::ltp
