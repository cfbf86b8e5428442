// Endpoint: peers: promoting candidates, sending and receiving, keepalive, rings.
#include <poll.h>

#include <algorithm>

#include "stream/endpoint.h"

namespace gradwire::stream {

Peer* Endpoint::find(std::uint32_t rank) {
  auto found = peers_.find(rank);
  return found == peers_.end() ? nullptr : found->second.get();
}

// The candidate becomes the peer's connection; the other candidates are closed.
void Endpoint::promote(Time now, Peer& peer, Candidate candidate) {
  while (!peer.candidates.empty()) drop_candidate(peer, peer.candidates.back().channel->fd());
  peer.channel = std::move(candidate.channel);
  peer.ring = candidate.ring;
  peer.connection = std::move(candidate.connection);
  peer.epoch = candidate.epoch;
  peer.pending = -1;
  peer.watching_writable = false;
  peer.next_try = kNever;
  peer.state = Peer::State::connected;
  // To a responder, the first frame proves that the initiator is live.
  peer.control.push_front({FrameType::ping, 0, 0, 0, static_cast<std::uint64_t>(now), 0});
  report(EventType::connected, peer);
}

void Endpoint::drop_candidate(Peer& peer, int fd) {
  if (std::erase_if(peer.candidates, [&](const Candidate& one) { return one.channel->fd() == fd; })) streams_.erase(fd);
}

// The first candidate with a valid frame becomes the peer's connection. Nothing is written to any of them before that.
void Endpoint::on_candidate(Time now, Peer& peer, int fd, std::uint32_t events) {
  using Status = Connection::Status;
  auto found =
      std::find_if(peer.candidates.begin(), peer.candidates.end(), [&](auto& one) { return one.channel->fd() == fd; });
  if (found == peer.candidates.end()) return;
  Status status = Status::idle;
  if (!found->ring || found->ring->readable()) {
    peer.outbox.set_credit(found->credit);  // before frames that add to it
    status = found->connection->receive(now);
  } else if (events) {
    status = Status::closed;  // the socket of a pair of rings only signals its end
  }
  if (found->connection->confirmed()) {
    Candidate proven = std::move(*found);
    peer.candidates.erase(found);
    promote(now, peer, std::move(proven));
    return handle_status(now, peer, status);
  }
  if (status == Status::idle || status == Status::more) return;
  if (status == Status::malformed) ++counters_.malformed;
  if (status == Status::forged) ++counters_.authentication_failed;
  peer.hint = Failure::half_open;
  drop_candidate(peer, fd);
}

void Endpoint::flush(Time now, Peer& peer) {
  if (!peer.connection) return;
  if (!peer.connection->flush(now)) return;  // reading finds the reason
  bool wanted = peer.connection->blocked() && peer.channel->polled_for_writable();
  if (wanted == peer.watching_writable) return;
  peer.watching_writable = wanted;
  poller_.watch(peer.channel->fd(), POLLIN | POLLRDHUP | (wanted ? POLLOUT : 0), true);
}

void Endpoint::on_stream(Time now, Peer& peer) { handle_status(now, peer, peer.connection->receive(now)); }

void Endpoint::handle_status(Time now, Peer& peer, Connection::Status status) {
  using Status = Connection::Status;
  switch (status) {
    case Status::closed: return fail(peer, Failure::vanished);
    case Status::goodbye: return fail(peer, Failure::closed);
    case Status::malformed: ++counters_.malformed; return fail(peer, Failure::protocol);
    case Status::forged: ++counters_.authentication_failed; return fail(peer, Failure::protocol);
    default: flush(now, peer);
  }
}

void Endpoint::disconnect(Peer& peer) {
  while (!peer.candidates.empty()) drop_candidate(peer, peer.candidates.back().channel->fd());
  if (peer.channel) streams_.erase(peer.channel->fd());
  peer.control.clear();
  peer.connection.reset();
  peer.ring = nullptr;
  peer.channel.reset();
}

void Endpoint::fail(Peer& peer, Failure failure) {
  if (peer.state == Peer::State::failed) return;
  peer.state = Peer::State::failed;
  peer.failure = failure;
  peer.outbox.fail_all(failure);
  peer.inbox.fail_all(failure);
  if (peer.pending >= 0) pending_.erase(std::exchange(peer.pending, -1));
  disconnect(peer);
  report(EventType::failed, peer);
}

void Endpoint::keep_alive(Time now, Peer& peer) {
  if (now - peer.connection->last_received() >= config_.dead_after) return fail(peer, Failure::vanished);
  if (now - peer.connection->last_sent() < config_.keepalive) return;
  peer.connection->mark_sent(now);
  if (peer.connection->blocked()) return;
  // Also updates the kernel's estimates of an idle path.
  LinkStats seen;
  peer.channel->describe(seen);
  peer.control.push_back({FrameType::ping, 0, 0, 0, static_cast<std::uint64_t>(now), 0});
  flush(now, peer);
}

bool Endpoint::rings_ready() const {
  for (auto& [rank, peer] : peers_) {
    if (peer->ring && (peer->ring->readable() || (peer->connection->blocked() && peer->ring->writable()))) return true;
    for (const Candidate& candidate : peer->candidates)
      if (candidate.ring && candidate.ring->readable()) return true;
  }
  return false;
}

bool Endpoint::handle_rings(Clock now) {
  bool any = false;
  auto readable = [](const Candidate& candidate) { return candidate.ring && candidate.ring->readable(); };
  for (auto& [rank, peer] : peers_) {
    if (peer->ring && peer->ring->readable()) {
      any = true;
      on_stream(now(), *peer);
    }
    if (peer->ring && peer->connection->blocked() && peer->ring->writable()) {
      any = true;
      flush(now(), *peer);
    }
    auto found = std::find_if(peer->candidates.begin(), peer->candidates.end(), readable);
    if (found != peer->candidates.end()) {
      any = true;
      on_candidate(now(), *peer, found->channel->fd(), 0);
    }
  }
  return any;
}

void Endpoint::set_asleep(bool asleep) {
  for (auto& [rank, peer] : peers_) {
    if (peer->ring) peer->ring->set_asleep(asleep);
    for (const Candidate& candidate : peer->candidates)
      if (candidate.ring) candidate.ring->set_asleep(asleep);
  }
}

}  // namespace gradwire::stream
