// Peer: one other rank: its address, the state of the handshake, and the connection once it is established.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "core/address.h"
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
  std::optional<EphemeralKey> key;  // the initiator's, until ACCEPT
  Time greeting_at = 0, greeted_at = 0, deadline = 0;
  std::optional<Address> knocked_from;  // where a responder's KNOCK came from, if not from `address`
  Time asked_at = 0;                    // when the first HELLO with a cookie was sent: an ACCEPT may answer any of them
  int greetings = 0;
  Failure hint = Failure::none;  // what to report if the deadline passes

  // The responder's answer, kept to be sent again when it was lost.
  Datagram accept;
  Time accepted_at = 0;

  std::unique_ptr<Connection> connection;
  // Where the newest packet came from, while it is not the address: the peer has moved there when it answers `token`.
  struct Move {
    Address to;
    std::uint64_t token = 0;
  };
  std::optional<Move> move;
  Time challenged_at = 0;
  std::vector<SendRequest> early_sends;
  std::vector<ReceiveRequest> early_receives;
};

}  // namespace gradwire::ltp
