// Loop: peers: connecting, promoting candidates, sending and receiving, timeouts. Sockets in the handshake:
// endpoint_handshake.cpp.
#include <sys/epoll.h>

#include <algorithm>
#include <system_error>

#include "stream/loop.h"

namespace gradwire::stream {

void Loop::start_connect(Time now, Peer& peer) {
  peer.next_try = now + kRetry;
  try {
    PendingSocket pending;
    pending.socket = config_.local ? connect_local(peer.address.port) : connect_tcp(own_address_, peer.address);
    pending.rank = peer.number;
    pending.deadline = peer.deadline;
    int fd = pending.socket.get();
    watch(fd, EPOLLIN | EPOLLOUT, false);
    pending_[fd] = std::move(pending);
    peer.pending = fd;
    peer.next_try = kNever;
  } catch (const std::system_error&) {
    // The peer does not listen yet, or the network is not up yet; the deadline decides.
  }
}

void Loop::on_ready(Time now, int fd, std::uint32_t events) {
  if (fd == event_.get()) {
    std::uint64_t drained;
    [[maybe_unused]] ssize_t count = ::read(fd, &drained, sizeof drained);
    return;
  }
  if (fd == listener_.socket.get()) return on_listener(now);
  if (auto pending = pending_.find(fd); pending != pending_.end()) {
    // When the system refuses resources (descriptors, memory), this handshake ends, not the loop.
    bool stays = false;
    try {
      stays = on_pending(now, pending->second);
    } catch (const std::system_error&) {
    }
    if (!stays) drop_pending(fd);
    return;
  }
  auto stream = streams_.find(fd);
  if (stream == streams_.end()) return;
  Peer& peer = *find(stream->second);
  if (!peer.channel || peer.channel->fd() != fd) return on_candidate(now, peer, fd, events);
  if (events & EPOLLOUT) flush(now, peer);
  if (peer.ring) {
    // The socket of a pair of rings only signals its end; what is left in the rings is read first.
    while (peer.ring && peer.ring->readable()) on_stream(now, peer);
    if (peer.ring && (events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP | EPOLLIN))) fail(peer, Failure::vanished);
  } else if (peer.connection && (events & (EPOLLIN | EPOLLHUP | EPOLLERR))) {
    on_stream(now, peer);
  }
}

// The candidate becomes the peer's connection; the other candidates are closed.
void Loop::promote(Time now, Peer& peer, Candidate candidate) {
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
  changed_.notify_all();
}

void Loop::drop_candidate(Peer& peer, int fd) {
  if (std::erase_if(peer.candidates, [&](const Candidate& one) { return one.channel->fd() == fd; })) streams_.erase(fd);
}

// The first candidate with a valid frame becomes the peer's connection. Nothing is written to any of them before that.
void Loop::on_candidate(Time now, Peer& peer, int fd, std::uint32_t events) {
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

void Loop::flush(Time now, Peer& peer) {
  if (!peer.connection) return;
  if (!peer.connection->flush(now)) return;  // reading finds the reason
  bool wanted = peer.connection->blocked() && peer.channel->polled_for_writable();
  if (wanted == peer.watching_writable) return;
  peer.watching_writable = wanted;
  watch(peer.channel->fd(), EPOLLIN | EPOLLRDHUP | (wanted ? static_cast<std::uint32_t>(EPOLLOUT) : 0u), true);
}

void Loop::on_stream(Time now, Peer& peer) { handle_status(now, peer, peer.connection->receive(now)); }

void Loop::handle_status(Time now, Peer& peer, Connection::Status status) {
  using Status = Connection::Status;
  switch (status) {
    case Status::closed: return fail(peer, Failure::vanished);
    case Status::goodbye: return fail(peer, Failure::closed);
    case Status::malformed: ++counters_.malformed; return fail(peer, Failure::protocol);
    case Status::forged: ++counters_.authentication_failed; return fail(peer, Failure::protocol);
    default: flush(now, peer);
  }
}

void Loop::disconnect(Peer& peer) {
  while (!peer.candidates.empty()) drop_candidate(peer, peer.candidates.back().channel->fd());
  if (peer.channel) streams_.erase(peer.channel->fd());
  peer.control.clear();
  peer.connection.reset();
  peer.ring = nullptr;
  peer.channel.reset();
}

void Loop::fail(Peer& peer, Failure failure) {
  if (peer.state == Peer::State::failed) return;
  peer.state = Peer::State::failed;
  peer.failure = failure;
  peer.outbox.fail_all(failure);
  peer.inbox.fail_all(failure);
  if (peer.pending >= 0) pending_.erase(std::exchange(peer.pending, -1));
  disconnect(peer);
  changed_.notify_all();
}

Time Loop::next_timer() const {
  Time next = kNever;
  for (auto& [rank, peer] : peers_) {
    if (peer->state == Peer::State::waiting) next = std::min({next, peer->deadline, peer->next_try});
    if (peer->connection)
      next = std::min({next, peer->connection->last_sent() + config_.keepalive,
                       peer->connection->last_received() + config_.dead_after});
    for (const Candidate& one : peer->candidates)
      next = std::min(next, one.connection->last_received() + config_.dead_after);
  }
  for (auto& [fd, pending] : pending_) next = std::min(next, pending.deadline);
  return next;
}

void Loop::on_timers(Time now) {
  for (auto& [rank, peer] : peers_) {
    if (peer->state == Peer::State::waiting) {
      if (now >= peer->deadline)
        fail(*peer, peer->candidates.empty() ? peer->hint : Failure::half_open);
      else if (now >= peer->next_try)
        start_connect(now, *peer);
    }
    if (peer->connection) keep_alive(now, *peer);
    auto silent = [&](const Candidate& one) { return now - one.connection->last_received() >= config_.dead_after; };
    for (auto& candidates = peer->candidates; !candidates.empty() && silent(candidates.front());) {
      peer->hint = Failure::half_open;
      drop_candidate(*peer, candidates.front().channel->fd());
    }
  }
  std::vector<int> late;
  for (auto& [fd, pending] : pending_)
    if (now >= pending.deadline) late.push_back(fd);
  for (int fd : late) drop_pending(fd);
}

void Loop::keep_alive(Time now, Peer& peer) {
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

}  // namespace gradwire::stream
