// Messages coming from one peer: receives posted by the application, messages announced by the peer, and the pairing of
// the two by tag, each in its order. What nobody has asked for yet is kept, up to the credit that the peer was given.
#pragma once
#include <deque>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ltp/transfer.h"
#include "stream/frame.h"

namespace gradwire::stream {

class Inbox {
 public:
  Inbox(std::uint32_t rank, std::uint64_t credit, std::deque<ltp::Event>& events, std::deque<Frame>& control)
      : rank_(rank), credit_(credit), events_(events), control_(control) {}

  // False when nothing that is here already pairs with it and `open` says that nothing can come any more.
  bool post(ltp::Time now, const ltp::ReceiveRequest& request, bool open);
  bool cancel(std::uint64_t token);

  // A frame's header has come. False: no correct peer writes it.
  bool begin(ltp::Time now, const Frame& frame);
  // Where the payload of the frame that began last belongs, now: it may move between two reads.
  std::uint8_t* target();
  // The whole payload is there and authentic.
  void finish(ltp::Time now);
  void on_abort(ltp::Time now, std::uint64_t id);

  // Bytes of credit that the peer has not been told of; `take` says it now.
  std::uint64_t owed() const { return owed_; }
  bool owes_much() const { return owed_ > 0 && owed_ >= credit_ / 4; }
  std::uint64_t take_owed() { return std::exchange(owed_, 0); }
  void fail_all(ltp::Failure failure);

 private:
  struct Incoming {
    std::uint64_t id = 0, tag = 0, size = 0;
    std::uint64_t arrived = 0;
    std::uint64_t held = 0;  // of the peer's credit, while nobody has asked for it
    std::uint64_t token = 0;
    std::uint8_t* data = nullptr;  // the receive's buffer, once paired
    std::vector<std::uint8_t> staged;
    ltp::Time started = 0;
    bool paired = false, discarded = false;
    bool bare = false;  // announced without a byte
  };

  void pair(ltp::Time now, Incoming& incoming, const ltp::ReceiveRequest& request);
  void refuse(ltp::Time now, Incoming& incoming, const ltp::ReceiveRequest& request);
  void discard(Incoming& incoming, ltp::CloseReason reason);
  void complete(ltp::Time now, Incoming& incoming);
  void erase(std::uint64_t id);
  void report(ltp::Time now, const Incoming& incoming, std::uint64_t token, ltp::CloseReason reason, ltp::Failure failure);

  std::uint32_t rank_;
  std::uint64_t credit_, owed_ = 0, held_ = 0, last_id_ = 0;
  std::size_t bare_ = 0;
  std::deque<ltp::Event>& events_;
  std::deque<Frame>& control_;
  std::unordered_map<std::uint64_t, std::deque<ltp::ReceiveRequest>> posted_;  // by tag
  std::set<std::pair<std::uint64_t, std::uint64_t>> unclaimed_;                // tag, ID: the oldest of a tag comes first
  std::unordered_map<std::uint64_t, Incoming> incoming_;
  Frame current_;
  std::vector<std::uint8_t> scratch_;  // payload of a discarded message, read only to stay in step
};

}  // namespace gradwire::stream
