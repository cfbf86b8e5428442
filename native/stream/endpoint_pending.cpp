// Endpoint: sockets that are not authenticated yet: connecting, accepting and limiting them.
#include <poll.h>

#include <algorithm>
#include <system_error>

#include "stream/endpoint.h"

namespace gradwire::stream {
namespace {

// Incoming sockets held at once. A handshake needs one for a round trip; a peer whose socket is closed connects again.
constexpr std::size_t kPendingMost = 256;
// From one address: a quarter, so that one host cannot evict the sockets of others.
constexpr std::size_t kPendingPerAddress = kPendingMost / 4;
// A HELLO follows the challenge after one round trip; this allows one retransmission on a path of 500 ms.
constexpr Time kPendingLife = 2 * kSecond;
// A connection that was refused or closed without an answer is tried again after this time: ranks do not start
// together.
constexpr Time kRetry = 50 * kMillisecond;

}  // namespace

void Endpoint::start_connect(Time now, Peer& peer) {
  try {
    PendingSocket pending;
    pending.socket = config_.local ? connect_local(peer.address.port) : connect_tcp(own_address_, peer.address);
    pending.rank = peer.number;
    pending.deadline = peer.deadline;
    int fd = pending.socket.get();
    poller_.watch(fd, POLLIN | POLLOUT, false);
    pending_[fd] = std::move(pending);
    peer.pending = fd;
    peer.next_try = kNever;
  } catch (const std::system_error&) {
    // The peer does not listen yet, or the network is not up yet; the deadline decides.
    peer.next_try = now + kRetry;
  }
}

void Endpoint::on_listener(Time now) {
  for (int accepted = 0; accepted < 16; ++accepted) {
    PendingSocket pending;
    pending.socket = accept_from(listener_, pending.from);
    int fd = pending.socket.get();
    if (fd < 0) return;
    if (config_.local && !same_user(fd)) {
      ++counters_.dropped;
      continue;
    }
    ++counters_.accepted;
    evict_oldest(now, pending.from);
    if (!send_challenge(pending)) continue;
    pending.deadline = now + kPendingLife;
    poller_.watch(fd, POLLIN, false);
    pending_[fd] = std::move(pending);
  }
}

// Closes the oldest incoming socket when there are too many: of the same address when that has its share, else of all.
void Endpoint::evict_oldest(Time now, const Address& from) {
  std::size_t all = 0, same = 0;
  std::pair<Time, int> oldest{kNever, -1}, oldest_same = oldest;
  for (auto& [fd, pending] : pending_) {
    if (pending.rank) continue;  // outgoing
    ++all;
    oldest = std::min(oldest, {pending.deadline, fd});
    if (pending.from != from) continue;
    ++same;
    oldest_same = std::min(oldest_same, {pending.deadline, fd});
  }
  bool crowded = !config_.local && same >= kPendingPerAddress;
  if (!crowded && all < kPendingMost) return;
  ++counters_.dropped;
  drop_pending(now, crowded ? oldest_same.second : oldest.second);
}

void Endpoint::drop_pending(Time now, int fd) {
  auto found = pending_.find(fd);
  if (found == pending_.end()) return;
  if (found->second.rank)
    if (Peer* peer = find(*found->second.rank); peer && peer->pending == fd) {
      peer->pending = -1;
      if (peer->state == Peer::State::waiting) peer->next_try = now + kRetry;
    }
  pending_.erase(found);
}

// False: the socket can be closed.
bool Endpoint::on_pending(Time now, PendingSocket& pending) {
  if (pending.rank && pending.stage == PendingSocket::Stage::connecting) return on_connected(pending);
  if (!pending.receive()) return false;
  if (pending.got >= kAnyGreeting)
    if (auto rank = Greeter::other_version(Bytes(pending.bytes).first(kAnyGreeting))) {
      on_other_version(pending, *rank);
      return false;
    }
  if (!pending.complete()) return true;
  if (pending.rank && pending.stage == PendingSocket::Stage::connected) return on_challenge(pending);
  if (pending.rank)
    on_answer(now, pending);
  else
    on_hello(now, pending);
  return false;
}

}  // namespace gradwire::stream
