// Outbox: messages to one peer: which is sent next, and how much of it. Credit limits what is sent before the peer has
// posted a receive. No sockets.
#pragma once
#include <deque>
#include <list>
#include <optional>
#include <unordered_map>

#include "core/event.h"
#include "stream/frame.h"

namespace gradwire::stream {

class Outbox {
 public:
  Outbox(std::uint32_t rank, std::deque<Event>& events) : rank_(rank), events_(events) {}

  void set_credit(std::uint64_t bytes) { credit_ = bytes; }
  void send(Time now, const SendRequest& request);
  bool cancel(std::uint64_t token);
  // What is not in frames yet is copied: the caller's buffer is not read by later frames.
  void detach(std::uint64_t token);
  std::optional<std::uint64_t> id_of(std::uint64_t token) const;

  // The next frame and its payload; none when no message can send.
  struct Next {
    Frame frame;
    const std::uint8_t* payload = nullptr;
  };
  std::optional<Next> next();
  // The last frame of this message no longer needs the caller's buffer.
  void written(Time now, std::uint64_t id);

  // Frames of the peer. False: no correct peer sends it.
  bool on_grant(std::uint64_t id);
  bool on_done(Time now, std::uint64_t id, CloseReason reason);
  bool on_credit(std::uint64_t bytes);
  void fail_all(Failure failure);
  // Ids of cancelled messages to report to the peer.
  std::deque<std::uint64_t>& aborted() { return aborted_; }

 private:
  struct Message {
    SendRequest request;
    std::uint64_t id = 0;
    std::uint64_t made = 0;  // bytes put into frames
    Time submitted = 0;
    bool opened = false, granted = false;
    bool counted = false;  // announced without payload, so that credit does not limit it
  };
  using Messages = std::list<Message>;
  std::size_t allowed(const Message& message) const;
  void finish(Time now, Messages::iterator at, CloseReason reason, Failure failure);
  void forget(Messages::iterator at);
  void settle(Message& message);

  std::uint32_t rank_;
  std::deque<Event>& events_;
  std::uint64_t credit_ = 0, next_id_ = 1;
  std::size_t announced_ = 0;
  Messages sending_;  // not yet all in frames, in order of submission
  Messages waiting_;  // all in frames, waiting for DONE
  std::unordered_map<std::uint64_t, Messages::iterator> by_id_;
  std::deque<std::uint64_t> aborted_;
};

}  // namespace gradwire::stream
