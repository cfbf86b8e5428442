// Requests, timers and output of the endpoint; datagrams are handled in endpoint_handshake.cpp.
#include "ltp/endpoint.h"

#include <algorithm>
#include <array>

namespace gradwire::ltp {
namespace {

constexpr Time kFirstGreeting = 100 * kMillisecond;
constexpr Time kLastGreeting = kSecond;
// Greetings before their interval doubles: a burst of losses can drop several in a row.
constexpr int kSteadyGreetings = 8;
// Connections send before answers do, but not always: a peer that wants to connect must not wait until others have sent
// all.
constexpr int kRunsPerAnswer = 8;

}  // namespace

Endpoint::Endpoint(const Settings& settings, const Identity& self, Bytes job_secret, const Secret& entropy)
    : settings_(settings), self_(self), handshake_(job_secret, entropy), deadlines_(settings_) {}

void Endpoint::connect(Time now, std::uint32_t rank, const Address& address) {
  Peer& peer = peers_[rank];
  // A live connection stays and is reported again; an unconfirmed one is reported when it is confirmed.
  if (peer.connection && peer.state == Peer::State::connected)
    return peer.connection->confirmed() ? report_connected(peer) : void();
  if (peer.connection) by_connection_.erase(peer.connection->start().local);
  peer.connection.reset();
  peer.rank = rank;
  peer.address = address;
  peer.initiator = self_.rank < rank;
  peer.state = Peer::State::greeting;
  peer.failure = peer.hint = Failure::none;
  peer.deadline = now + settings_.connect_timeout;
  peer.greetings = 0;
  peer.asked_at = 0;
  peer.greeting_at = now;
  peer.hello = Hello{};
  peer.hello.encrypt = settings_.encrypt;
  peer.hello.connection = fresh_connection();
  peer.hello.rank = self_.rank;
  peer.hello.peer_rank = rank;
  peer.hello.epoch = self_.epoch;
  peer.hello.nonce = handshake_.fresh_nonce();
  peer.hello.credit = settings_.credit;
  peer.hello.largest_datagram = settings_.largest_datagram;
  peer.key.reset();
  if (!peer.initiator) return;
  peer.key = handshake_.fresh_key();
  peer.hello.key = peer.key->public_key();
}

std::uint32_t Endpoint::fresh_connection() {
  for (;;) {
    auto number = static_cast<std::uint32_t>(handshake_.fresh_number());
    if (number && !by_connection_.count(number) && !greeting_peer(number)) return number;
  }
}

Peer* Endpoint::greeting_peer(std::uint32_t connection) {
  for (auto& [rank, peer] : peers_)
    if (peer.state == Peer::State::greeting && peer.initiator && peer.hello.connection == connection) return &peer;
  return nullptr;
}

void Endpoint::send_greeting(Time now, Peer& peer) {
  if (peer.initiator) {
    pending_datagrams_.push_back({peer.address, handshake_.sealed(peer.hello)});
    if (peer.knocked_from) pending_datagrams_.push_back({*peer.knocked_from, handshake_.sealed(peer.hello)});
  } else
    pending_datagrams_.push_back({peer.address, handshake_.sealed(Knock{self_.rank, peer.rank, self_.epoch})});
  peer.greeted_at = now;
  peer.greeting_at =
      now + std::min(kLastGreeting, kFirstGreeting << std::clamp(peer.greetings++ - kSteadyGreetings, 0, 4));
}

void Endpoint::send(Time now, std::uint32_t rank, SendRequest request) {
  auto found = peers_.find(rank);
  if (found == peers_.end()) return refuse(EventType::sent, rank, request.token, request.size, Failure::no_answer);
  Peer& peer = found->second;
  if (peer.state == Peer::State::connected) return peer.connection->send(now, std::move(request));
  if (peer.state == Peer::State::greeting) return peer.early_sends.push_back(std::move(request));
  refuse(EventType::sent, rank, request.token, request.size, peer.failure);
}

void Endpoint::post(Time now, std::uint32_t rank, const ReceiveRequest& request) {
  auto found = peers_.find(rank);
  if (found == peers_.end()) return refuse(EventType::received, rank, request.token, request.size, Failure::no_answer);
  Peer& peer = found->second;
  if (peer.state == Peer::State::connected) return peer.connection->post(now, request);
  if (peer.state == Peer::State::greeting) return peer.early_receives.push_back(request);
  refuse(EventType::received, rank, request.token, request.size, peer.failure);
}

void Endpoint::refuse(EventType type, std::uint32_t rank, std::uint64_t token, std::uint64_t size, Failure failure) {
  Event event;
  event.type = type;
  event.rank = rank;
  event.token = token;
  event.size = size;
  event.failure = failure;
  events_.push_back(std::move(event));
}

bool Endpoint::cancel(Time now, std::uint32_t rank, std::uint64_t token) {
  auto found = peers_.find(rank);
  if (found == peers_.end()) return false;
  Peer& peer = found->second;
  auto same_token = [&](const auto& request) { return request.token == token; };
  if (std::erase_if(peer.early_sends, same_token) || std::erase_if(peer.early_receives, same_token)) return true;
  return peer.connection && peer.connection->cancel(now, token);
}

void Endpoint::detach(std::uint32_t rank, std::uint64_t token) {
  auto found = peers_.find(rank);
  if (found == peers_.end()) return;
  for (SendRequest& request : found->second.early_sends)
    if (request.token == token) return request.detach(std::array{ByteRange{0, request.size}});
  if (found->second.connection) found->second.connection->detach(token);
}

void Endpoint::shut() {
  for (auto& [rank, peer] : peers_)
    if (peer.connection) peer.connection->shut(ShutReason::goodbye);
}

void Endpoint::start(Time now, Peer& peer, const ConnectionStart& start) {
  peer.connection = std::make_unique<Connection>(settings_, start, deadlines_, now);
  peer.move.reset();
  peer.key.reset();
  peer.state = Peer::State::connected;
  by_connection_[start.local] = &peer;
  for (SendRequest& request : peer.early_sends) peer.connection->send(now, std::move(request));
  for (const ReceiveRequest& request : peer.early_receives) peer.connection->post(now, request);
  peer.early_sends.clear();
  peer.early_receives.clear();
  if (start.confirmed) report_connected(peer);
}

void Endpoint::report_connected(const Peer& peer) {
  Event event;
  event.rank = peer.rank;
  events_.push_back(std::move(event));
}

void Endpoint::fail(Time now, Peer& peer, Failure failure) {
  if (peer.connection) peer.connection->fail(now, failure);
  peer.failure = failure;
  peer.key.reset();
  for (const SendRequest& request : peer.early_sends)
    refuse(EventType::sent, peer.rank, request.token, request.size, failure);
  for (const ReceiveRequest& request : peer.early_receives)
    refuse(EventType::received, peer.rank, request.token, request.size, failure);
  peer.early_sends.clear();
  peer.early_receives.clear();
  peer.state = Peer::State::failed;
  collect_events(now, peer);
  refuse(EventType::failed, peer.rank, 0, 0, failure);
}

// Moves the events of a connection out. When the connection has failed, its peer fails too.
void Endpoint::collect_events(Time now, Peer& peer) {
  if (!peer.connection) return;
  auto& events = peer.connection->events();
  while (!events.empty()) {
    events_.push_back(std::move(events.front()));
    events.pop_front();
  }
  if (peer.connection->failure() == Failure::none) return;
  Failure failure = peer.connection->failure();
  by_connection_.erase(peer.connection->start().local);
  peer.connection.reset();
  if (peer.state != Peer::State::failed) fail(now, peer, failure);
}

bool Endpoint::alive(Time now, const Peer& peer) const {
  return peer.connection && peer.connection->confirmed() &&
         now - peer.connection->last_received() < 3 * settings_.keepalive;
}

void Endpoint::handle_timeout(Time now) {
  for (auto& [rank, peer] : peers_) {
    if (peer.state == Peer::State::greeting) {
      if (peer.deadline <= now)
        fail(now, peer, peer.hint == Failure::none ? Failure::no_answer : peer.hint);
      else if (peer.greeting_at <= now)
        send_greeting(now, peer);
    } else if (peer.connection) {
      peer.connection->handle_timeout(now);
      collect_events(now, peer);
    }
  }
}

Time Endpoint::poll_timeout(Time now) {
  Time earliest = pending_datagrams_.empty() && answers_.empty() ? kNever : now;
  for (auto& [rank, peer] : peers_) {
    if (peer.state == Peer::State::greeting) earliest = std::min({earliest, peer.greeting_at, peer.deadline});
    if (peer.connection) earliest = std::min(earliest, peer.connection->poll_timeout());
  }
  return earliest;
}

bool Endpoint::poll_transmit(Time now, MutableBytes out, std::size_t segments, Transmit& transmit) {
  if (poll_pending(pending_datagrams_, out, transmit)) return true;
  if ((answers_.empty() || runs_ < kRunsPerAnswer) && poll_peers(now, out, segments, transmit)) {
    ++runs_;
    return true;
  }
  runs_ = 0;
  return poll_pending(answers_, out, transmit);
}

bool Endpoint::poll_pending(std::deque<PendingDatagram>& pending, MutableBytes out, Transmit& transmit) {
  if (pending.empty()) return false;
  PendingDatagram& next = pending.front();
  std::memcpy(out.data(), next.bytes.data(), next.bytes.size());
  transmit = {next.to, next.bytes.size(), next.bytes.size()};
  pending.pop_front();
  return true;
}

bool Endpoint::poll_peers(Time now, MutableBytes out, std::size_t segments, Transmit& transmit) {
  // Round robin, starting after the peer that sent last.
  auto at = peers_.upper_bound(turn_);
  for (std::size_t count = peers_.size(); count > 0; --count, ++at) {
    if (at == peers_.end()) at = peers_.begin();
    if (!fill(now, at->second, out, segments, transmit)) continue;
    turn_ = at->first;
    return true;
  }
  return false;
}

bool Endpoint::fill(Time now, Peer& peer, MutableBytes out, std::size_t segments, Transmit& transmit) {
  if (!peer.connection) return false;
  transmit.to = peer.address;
  transmit.size = peer.connection->poll_packet(now, out);
  transmit.segment = transmit.size;
  // Data packets follow each other with the same length while there is data. A probe is sent alone: if the interface
  // refuses its size, nothing else is refused with it.
  bool full = transmit.size >= kLeastRoom && transmit.size <= peer.connection->datagram();
  for (std::size_t n = 1; full && n < segments && transmit.size + transmit.segment <= out.size(); ++n) {
    std::size_t size = peer.connection->poll_packet(now, out.subspan(transmit.size, transmit.segment));
    transmit.size += size;
    full = size == transmit.segment;
  }
  collect_events(now, peer);
  return transmit.size > 0;
}

bool Endpoint::poll_event(Event& event) {
  if (events_.empty()) return false;
  event = std::move(events_.front());
  events_.pop_front();
  return true;
}

const Peer* Endpoint::peer(std::uint32_t rank) const {
  auto found = peers_.find(rank);
  return found == peers_.end() ? nullptr : &found->second;
}

}  // namespace gradwire::ltp
