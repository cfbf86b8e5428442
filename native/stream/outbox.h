// Messages on their way to one peer: which goes next, and how much of it. Credit bounds what is sent before the peer
// has asked for it; no sockets here.
#pragma once
#include <deque>
#include <list>
#include <optional>
#include <unordered_map>

#include "ltp/transfer.h"
#include "stream/frame.h"

namespace gradwire::stream {

class Outbox {
 public:
  Outbox(std::uint32_t rank, std::deque<ltp::Event>& events) : rank_(rank), events_(events) {}

  void set_credit(std::uint64_t bytes) { credit_ = bytes; }
  void send(ltp::Time now, const ltp::SendRequest& request);
  bool cancel(std::uint64_t token);
  std::optional<std::uint64_t> id_of(std::uint64_t token) const;

  // The next frame and where its payload lies; nothing when all messages wait for something.
  struct Next {
    Frame frame;
    const std::uint8_t* payload = nullptr;
  };
  std::optional<Next> next();
  // The frame made last has left the caller's buffer.
  void written(ltp::Time now, std::uint64_t id);

  // What the peer says. False: no correct peer would.
  bool on_grant(std::uint64_t id);
  bool on_done(ltp::Time now, std::uint64_t id, ltp::CloseReason reason);
  bool on_credit(std::uint64_t bytes);
  void fail_all(ltp::Failure failure);
  // IDs of cancelled messages that the peer must be told of.
  std::deque<std::uint64_t>& aborted() { return aborted_; }

 private:
  struct Message {
    ltp::SendRequest request;
    std::uint64_t id = 0;
    std::uint64_t made = 0;  // bytes put into frames
    ltp::Time submitted = 0;
    bool opened = false, granted = false;
    bool counted = false;  // announced without a byte, so that no credit bounds it
  };
  using Messages = std::list<Message>;
  std::size_t allowed(const Message& message) const;
  void finish(ltp::Time now, Messages::iterator at, ltp::CloseReason reason, ltp::Failure failure);
  void forget(Messages::iterator at);
  void settle(Message& message);

  std::uint32_t rank_;
  std::deque<ltp::Event>& events_;
  std::uint64_t credit_ = 0, next_id_ = 1;
  std::size_t announced_ = 0;
  Messages sending_;  // not yet all in frames, in order of submission
  Messages waiting_;  // all in frames, waiting for DONE
  std::unordered_map<std::uint64_t, Messages::iterator> by_id_;
  std::deque<std::uint64_t> aborted_;
};

}  // namespace gradwire::stream
