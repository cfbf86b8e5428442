// Failure: why a connection ended.
#pragma once
#include <cstdint>

namespace gradwire {

enum class Failure : std::uint8_t {
  none = 0,
  no_answer,       // no packet that authenticates ever arrived
  authentication,  // packets from the peer's address arrived, none authenticated: the secrets differ
  rank_in_use,     // the peer has a live connection to another process of our rank
  wrong_rank,      // the peer has another rank than the one given to connect()
  too_many_peers,
  vanished,       // silent for dead_after
  restarted,      // the peer is a new process
  half_open,      // the peer started a handshake, was answered, and sent nothing more
  closed,         // the peer closed the connection
  protocol,       // an authenticated peer violated the protocol
  local_close,    // this process closed it
  wrong_version,  // the peer speaks another version of the protocol
  key_limit,      // a key was used as often as it may be, before it was changed
};

}  // namespace gradwire
