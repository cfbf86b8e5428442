// Peer: what an endpoint knows of one other process: its transfers, its connection, and those that may become it.
#pragma once
#include <deque>
#include <memory>
#include <vector>

#include "core/address.h"
#include "stream/connection.h"
#include "stream/ring_channel.h"

namespace gradwire::stream {

// A connection whose HELLO was accepted and that has not received a valid frame yet. A peer may have several: only a
// frame shows which of them it uses and which it has abandoned.
struct Candidate {
  std::unique_ptr<Channel> channel;
  RingChannel* ring = nullptr;  // the channel, when it is one
  std::unique_ptr<Connection> connection;
  std::uint64_t epoch = 0;
  std::uint32_t credit = 0;
};

struct Peer {
  enum class State { waiting, connected, failed };
  Peer(std::uint32_t rank, std::uint64_t credit, std::deque<Event>& events)
      : number(rank), outbox(rank, events), inbox(rank, credit, events, control) {}
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  std::uint32_t number;
  std::deque<Frame> control;
  Outbox outbox;
  Inbox inbox;
  State state = State::waiting;
  Failure failure = Failure::none, hint = Failure::no_answer;
  Address address;
  Time deadline = 0, next_try = 0;
  std::uint64_t epoch = 0;
  int pending = -1;  // the socket of a handshake in progress
  bool watching_writable = false;
  std::unique_ptr<Channel> channel;
  RingChannel* ring = nullptr;
  std::unique_ptr<Connection> connection;
  std::vector<Candidate> candidates;  // oldest first
};

}  // namespace gradwire::stream
