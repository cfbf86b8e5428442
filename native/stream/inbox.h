// Inbox: messages from one peer: receives posted by the application, messages announced by the peer, and their pairing
// by tag, each in order. Messages without a posted receive are stored, up to the credit that the peer was given.
#pragma once
#include <deque>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/event.h"
#include "stream/frame.h"

namespace gradwire::stream {

class Inbox {
 public:
  Inbox(std::uint32_t rank, std::uint64_t credit, std::deque<Event>& events, std::deque<Frame>& control)
      : rank_(rank), credit_(credit), events_(events), control_(control) {}

  // False when no stored message pairs with it and `open` is false: no further message can arrive.
  bool post(Time now, const ReceiveRequest& request, bool open);
  bool cancel(std::uint64_t token);

  // A frame's header has arrived. False: no correct peer writes it.
  bool begin(Time now, const Frame& frame);
  // The present place for the payload of the last frame: it may move between two reads.
  std::uint8_t* target();
  // The whole payload has arrived and is authentic.
  void finish(Time now);
  void on_abort(Time now, std::uint64_t id);

  // Bytes of credit not yet returned to the peer; `take_owed` returns them now.
  std::uint64_t owed() const { return owed_; }
  bool owes_credit() const { return owed_ > 0 && owed_ >= credit_ / 4; }
  std::uint64_t take_owed() { return std::exchange(owed_, 0); }
  void fail_all(Failure failure);

 private:
  struct Incoming {
    std::uint64_t id = 0, tag = 0, size = 0;
    std::uint64_t arrived = 0;
    std::uint64_t held = 0;  // of the peer's credit, while no receive is posted
    std::uint64_t token = 0;
    std::uint8_t* data = nullptr;  // the receive's buffer, once paired
    std::vector<std::uint8_t> staged;
    Time started = 0;
    bool paired = false, discarded = false;
    bool bare = false;  // announced without payload
  };

  void pair(Time now, Incoming& incoming, const ReceiveRequest& request);
  void refuse(Time now, Incoming& incoming, const ReceiveRequest& request);
  void discard(Incoming& incoming, CloseReason reason);
  void complete(Time now, Incoming& incoming);
  void erase(std::uint64_t id);
  void report(Time now, const Incoming& incoming, std::uint64_t token, CloseReason reason, Failure failure);

  std::uint32_t rank_;
  std::uint64_t credit_, owed_ = 0, held_ = 0, last_id_ = 0;
  std::size_t bare_ = 0;
  std::deque<Event>& events_;
  std::deque<Frame>& control_;
  std::unordered_map<std::uint64_t, std::deque<ReceiveRequest>> posted_;  // by tag
  std::set<std::pair<std::uint64_t, std::uint64_t>> unclaimed_;           // tag, id: the oldest of a tag is first
  std::unordered_map<std::uint64_t, Incoming> incoming_;
  Frame current_;
  std::vector<std::uint8_t> scratch_;  // payload of a discarded message, read to find the next frame
};

}  // namespace gradwire::stream
