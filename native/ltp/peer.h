// One other rank: how to reach it, how far the handshake has come, and the connection once there is one.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "ltp/address.h"
#include "ltp/connection.h"
#include "ltp/handshake.h"

namespace gradwire::ltp {

struct Peer {
  enum class State : std::uint8_t { greeting, connected, failed };

  std::uint32_t rank = 0;
  Address address;
  bool initiator = false;
  State state = State::greeting;
  Failure failure = Failure::none;

  // Greeting. The initiator repeats HELLO, the other side KNOCK.
  Hello hello;
  Time greeting_at = 0, greeted_at = 0, deadline = 0;
  Time asked_at = 0;  // the first HELLO with a cookie: an ACCEPT may answer any of them
  int greetings = 0;
  Failure hint = Failure::none;  // what to report should the deadline pass

  // The responder's answer, kept to be repeated when it was lost.
  Datagram accept;
  Time accepted_at = 0;

  std::unique_ptr<Connection> connection;
  std::vector<SendRequest> early_sends;
  std::vector<ReceiveRequest> early_receives;
};

}  // namespace gradwire::ltp
