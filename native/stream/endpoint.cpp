#include "stream/endpoint.h"

#include <poll.h>

#include <algorithm>
#include <system_error>

namespace gradwire::stream {

Endpoint::Endpoint(EndpointConfig config, Poller& poller)
    : config_(std::move(config)),
      poller_(poller),
      greeter_(config_.secret),
      own_address_(config_.local ? Address{} : parse_address(config_.host, config_.port)),
      listener_(config_.local ? listen_local(config_.port) : listen_tcp(own_address_)) {
  poller_.watch(listener_.socket.get(), POLLIN, false);
}

const Peer* Endpoint::peer(std::uint32_t rank) const {
  auto found = peers_.find(rank);
  return found == peers_.end() ? nullptr : found->second.get();
}

void Endpoint::connect(Time now, std::uint32_t rank, const Address& address) {
  if (shut_) return;
  if (Peer* old = find(rank)) fail(*old, Failure::local_close);
  auto& peer = peers_[rank] = std::make_unique<Peer>(rank, config_.credit, events_);
  peer->address = address;
  peer->deadline = now + config_.connect_timeout;
  peer->next_try = config_.rank < rank ? now : kNever;
}

void Endpoint::send(Time now, std::uint32_t rank, const SendRequest& request) {
  Peer* peer = find(rank);
  if (!peer || peer->state == Peer::State::failed)
    return refuse(rank, request.token, EventType::sent, request.size, peer);
  peer->outbox.send(now, request);
  flush(now, *peer);
}

void Endpoint::post(Time now, std::uint32_t rank, const ReceiveRequest& request) {
  Peer* peer = find(rank);
  if (!peer || !peer->inbox.post(now, request, peer->state != Peer::State::failed))
    return refuse(rank, request.token, EventType::received, request.size, peer);
  if (!peer->control.empty() || peer->inbox.owes_credit()) flush(now, *peer);
}

bool Endpoint::cancel(Time now, std::uint32_t rank, std::uint64_t token) {
  Peer* peer = find(rank);
  if (!peer) return false;
  std::optional<std::uint64_t> id = peer->outbox.id_of(token);
  if (id && peer->connection) peer->connection->detach(*id);
  if (!peer->outbox.cancel(token) && !peer->inbox.cancel(token)) return false;
  flush(now, *peer);
  return true;
}

void Endpoint::detach(std::uint32_t rank, std::uint64_t token) {
  Peer* peer = find(rank);
  if (!peer) return;
  std::optional<std::uint64_t> id = peer->outbox.id_of(token);
  if (id && peer->connection) peer->connection->detach(*id);
  peer->outbox.detach(token);
}

void Endpoint::shut(Time now) {
  if (std::exchange(shut_, true)) return;
  for (auto& [rank, peer] : peers_) {
    if (peer->connection) {
      peer->control.push_back({FrameType::goodbye, 0, 0, 0, 0, 0});
      peer->connection->flush(now);
    }
    fail(*peer, Failure::local_close);
  }
  pending_.clear();
  listener_.socket.reset();
}

void Endpoint::refuse(std::uint32_t rank, std::uint64_t token, EventType type, std::uint64_t size, const Peer* peer) {
  Event event;
  event.type = type;
  event.rank = rank;
  event.token = token;
  event.size = size;
  event.failure = shut_ ? Failure::local_close : peer ? peer->failure : Failure::no_answer;
  events_.push_back(std::move(event));
}

void Endpoint::report(EventType type, const Peer& peer) {
  Event event;
  event.type = type;
  event.rank = peer.number;
  event.failure = peer.failure;
  events_.push_back(std::move(event));
}

bool Endpoint::poll_event(Event& event) {
  if (events_.empty()) return false;
  event = std::move(events_.front());
  events_.pop_front();
  return true;
}

void Endpoint::handle_ready(Time now, int fd, std::uint32_t events) {
  if (fd == listener_.socket.get()) return on_listener(now);
  if (auto pending = pending_.find(fd); pending != pending_.end()) {
    // When the system refuses resources (descriptors, memory), this handshake ends, not the loop.
    bool stays = false;
    try {
      stays = on_pending(now, pending->second);
    } catch (const std::system_error&) {
      stays = false;
    }
    if (!stays) drop_pending(now, fd);
    return;
  }
  auto stream = streams_.find(fd);
  if (stream == streams_.end()) return;
  Peer& peer = *find(stream->second);
  if (!peer.channel || peer.channel->fd() != fd) return on_candidate(now, peer, fd, events);
  if (events & POLLOUT) flush(now, peer);
  if (peer.ring) {
    // The socket of a pair of rings only signals its end; what is left in the rings is read first.
    while (peer.ring && peer.ring->readable()) on_stream(now, peer);
    if (peer.ring && (events & (POLLHUP | POLLERR | POLLRDHUP | POLLIN))) fail(peer, Failure::vanished);
  } else if (peer.connection && (events & (POLLIN | POLLHUP | POLLERR))) {
    on_stream(now, peer);
  }
}

Time Endpoint::poll_timeout() const {
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

void Endpoint::handle_timeout(Time now) {
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
  for (int fd : late) drop_pending(now, fd);
}

std::map<std::uint32_t, LinkStats> Endpoint::link_stats() {
  std::map<std::uint32_t, LinkStats> stats;
  for (auto& [rank, peer] : peers_) {
    if (!peer->connection) continue;
    LinkStats& link = stats[rank];
    link.srtt = peer->connection->rtt();
    link.rtprop = peer->connection->best_rtt();
    link.counters.bytes_sent = link.counters.bytes_acked = peer->connection->sent();
    link.counters.bytes_received = peer->connection->received();
    peer->channel->describe(link);
  }
  return stats;
}

}  // namespace gradwire::stream
