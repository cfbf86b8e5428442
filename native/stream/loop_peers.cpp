// Peers of a loop: calling, adopting connections, streaming, timing out. Sockets of strangers are in loop_guests.cpp.
#include <sys/epoll.h>

#include <algorithm>
#include <system_error>

#include "io/loop.h"
#include "stream/loop.h"

namespace gradwire::stream {

void Loop::call(ltp::Time now, Peer& peer) {
  peer.next_try = now + kRetry;
  try {
    Guest guest;
    guest.socket = config_.local ? connect_local(peer.address.port) : connect_tcp(own_address_, peer.address);
    guest.rank = peer.number;
    guest.deadline = peer.deadline;
    int fd = guest.socket.get();
    watch(fd, EPOLLIN | EPOLLOUT, false);
    guests_[fd] = std::move(guest);
    peer.guest = fd;
    peer.next_try = ltp::kNever;
  } catch (const std::system_error&) {
    // Nobody listens yet, or the network is not there yet; the deadline decides.
  }
}

void Loop::on_ready(ltp::Time now, int fd, std::uint32_t events) {
  if (fd == event_.get()) {
    std::uint64_t drained;
    [[maybe_unused]] ssize_t count = ::read(fd, &drained, sizeof drained);
    return;
  }
  if (fd == listener_.socket.get()) return on_listener(now);
  if (auto guest = guests_.find(fd); guest != guests_.end()) {
    // What the system refuses to one caller (descriptors, memory) ends that call, not the loop.
    bool stays = false;
    try {
      stays = on_guest(now, guest->second);
    } catch (const std::system_error&) {
    }
    if (!stays) drop_guest(fd);
    return;
  }
  auto stream = streams_.find(fd);
  if (stream == streams_.end()) return;
  Peer& peer = *find(stream->second);
  if (!peer.channel || peer.channel->fd() != fd) return on_candidate(now, peer, fd, events);
  if (events & EPOLLOUT) flush(now, peer);
  if (peer.ring) {
    // The socket of a pair of rings speaks only by ending; what is left in the rings comes first.
    while (peer.ring && peer.ring->readable()) on_stream(now, peer);
    if (peer.ring && (events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP | EPOLLIN))) fail(peer, ltp::Failure::vanished);
  } else if (peer.connection && (events & (EPOLLIN | EPOLLHUP | EPOLLERR))) {
    on_stream(now, peer);
  }
}

// The connection is the peer's; other callers that claimed to be it are let go.
void Loop::adopt(ltp::Time now, Peer& peer, Candidate candidate) {
  while (!peer.candidates.empty()) drop_candidate(peer, peer.candidates.back().channel->fd());
  peer.channel = std::move(candidate.channel);
  peer.ring = candidate.ring;
  peer.connection = std::move(candidate.connection);
  peer.epoch = candidate.epoch;
  peer.guest = -1;
  peer.watching_room = false;
  peer.next_try = ltp::kNever;
  peer.state = Peer::State::connected;
  // To a responder, the first frame proves that its caller is there now.
  peer.control.push_front({FrameType::ping, 0, 0, 0, static_cast<std::uint64_t>(now), 0});
  changed_.notify_all();
}

void Loop::drop_candidate(Peer& peer, int fd) {
  if (std::erase_if(peer.candidates, [&](const Candidate& one) { return one.channel->fd() == fd; })) streams_.erase(fd);
}

// The first that writes a valid frame is the peer. Nothing is written to any of them before that.
void Loop::on_candidate(ltp::Time now, Peer& peer, int fd, std::uint32_t events) {
  using Status = Connection::Status;
  auto found = std::find_if(peer.candidates.begin(), peer.candidates.end(), [&](auto& one) { return one.channel->fd() == fd; });
  if (found == peer.candidates.end()) return;
  Status status = Status::idle;
  if (!found->ring || found->ring->readable()) {
    peer.outbox.set_credit(found->credit);  // before frames that add to it
    status = found->connection->receive(now);
  } else if (events) {
    status = Status::gone;  // the socket of a pair of rings speaks only by ending
  }
  if (found->connection->confirmed()) {
    Candidate proven = std::move(*found);
    peer.candidates.erase(found);
    adopt(now, peer, std::move(proven));
    return conclude(now, peer, status);
  }
  if (status == Status::idle || status == Status::more) return;
  if (status == Status::broken) ++counters_.malformed;
  if (status == Status::forged) ++counters_.authentication_failed;
  peer.hint = ltp::Failure::half_open;
  drop_candidate(peer, fd);
}

void Loop::flush(ltp::Time now, Peer& peer) {
  if (!peer.connection) return;
  if (!peer.connection->flush(now)) return;  // reading tells why it is gone
  bool wanted = peer.connection->blocked() && peer.channel->polled_for_room();
  if (wanted == peer.watching_room) return;
  peer.watching_room = wanted;
  watch(peer.channel->fd(), EPOLLIN | EPOLLRDHUP | (wanted ? static_cast<std::uint32_t>(EPOLLOUT) : 0u), true);
}

void Loop::on_stream(ltp::Time now, Peer& peer) { conclude(now, peer, peer.connection->receive(now)); }

void Loop::conclude(ltp::Time now, Peer& peer, Connection::Status status) {
  using Status = Connection::Status;
  switch (status) {
    case Status::gone: return fail(peer, ltp::Failure::vanished);
    case Status::goodbye: return fail(peer, ltp::Failure::closed);
    case Status::broken: ++counters_.malformed; return fail(peer, ltp::Failure::protocol);
    case Status::forged: ++counters_.authentication_failed; return fail(peer, ltp::Failure::protocol);
    default: flush(now, peer);
  }
}

void Loop::hang_up(Peer& peer) {
  while (!peer.candidates.empty()) drop_candidate(peer, peer.candidates.back().channel->fd());
  if (peer.channel) streams_.erase(peer.channel->fd());
  peer.control.clear();
  peer.connection.reset();
  peer.ring = nullptr;
  peer.channel.reset();
}

void Loop::fail(Peer& peer, ltp::Failure failure) {
  if (peer.state == Peer::State::failed) return;
  peer.state = Peer::State::failed;
  peer.failure = failure;
  peer.outbox.fail_all(failure);
  peer.inbox.fail_all(failure);
  if (peer.guest >= 0) guests_.erase(std::exchange(peer.guest, -1));
  hang_up(peer);
  changed_.notify_all();
}

ltp::Time Loop::next_timer() const {
  ltp::Time next = ltp::kNever;
  for (auto& [rank, peer] : peers_) {
    if (peer->state == Peer::State::waiting) next = std::min({next, peer->deadline, peer->next_try});
    if (peer->connection)
      next = std::min({next, peer->connection->last_sent() + config_.keepalive, peer->connection->last_heard() + config_.dead_after});
    for (const Candidate& one : peer->candidates) next = std::min(next, one.connection->last_heard() + config_.dead_after);
  }
  for (auto& [fd, guest] : guests_) next = std::min(next, guest.deadline);
  return next;
}

void Loop::on_timers(ltp::Time now) {
  for (auto& [rank, peer] : peers_) {
    if (peer->state == Peer::State::waiting) {
      if (now >= peer->deadline) fail(*peer, peer->candidates.empty() ? peer->hint : ltp::Failure::half_open);
      else if (now >= peer->next_try) call(now, *peer);
    }
    if (peer->connection) keep_alive(now, *peer);
    auto silent = [&](const Candidate& one) { return now - one.connection->last_heard() >= config_.dead_after; };
    for (auto& candidates = peer->candidates; !candidates.empty() && silent(candidates.front());) {
      peer->hint = ltp::Failure::half_open;
      drop_candidate(*peer, candidates.front().channel->fd());
    }
  }
  std::vector<int> late;
  for (auto& [fd, guest] : guests_)
    if (now >= guest.deadline) late.push_back(fd);
  for (int fd : late) drop_guest(fd);
}

void Loop::keep_alive(ltp::Time now, Peer& peer) {
  if (now - peer.connection->last_heard() >= config_.dead_after) return fail(peer, ltp::Failure::vanished);
  if (now - peer.connection->last_sent() < config_.keepalive) return;
  peer.connection->tried(now);
  if (peer.connection->blocked()) return;
  // Also the moment at which the kernel's view of a quiet path is looked at.
  ltp::LinkStats seen;
  peer.channel->describe(seen);
  peer.control.push_back({FrameType::ping, 0, 0, 0, static_cast<std::uint64_t>(now), 0});
  flush(now, peer);
}

}  // namespace gradwire::stream
