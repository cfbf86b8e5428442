#include <algorithm>

#include "ltp/endpoint.h"

namespace gradwire::ltp {
namespace {

constexpr Time kResetEvery = 10 * kMillisecond;
constexpr Time kKnockAnswer = 50 * kMillisecond;
constexpr Time kChallengeEvery = 100 * kMillisecond;
// Answers queued for the socket. More are not queued: they would be outdated when sent.
constexpr std::size_t kAnswersMost = 1024;
constexpr std::size_t kResetSize = 2 + 4 + 4 + 8 + kTagSize;

std::array<std::uint8_t, 8> number_bytes(std::uint64_t number) {
  std::array<std::uint8_t, 8> bytes;
  Writer(bytes).u64(number);
  return bytes;
}

// Greetings are at least kKnockAnswer apart, so an answer within that time belongs to the last one. A later answer may
// belong to an earlier greeting, after loss or because the peer was not ready: its round trip is unknown (0).
Time round_trip(Time elapsed) { return elapsed < kKnockAnswer ? std::max(elapsed, kMicrosecond) : 0; }

}  // namespace

void Endpoint::handle_datagram(Time now, const Address& from, MutableBytes datagram) {
  auto kind = peek_kind(datagram);
  if (!kind) {
    if (!datagram.empty() && datagram[0] >> 4 != kVersion) return on_other_version(now, from, datagram);
    ++counters_.malformed;
    return;
  }
  switch (*kind) {
    case Kind::sealed: return on_sealed(now, from, datagram);
    case Kind::hello: return on_hello(now, from, datagram);
    case Kind::retry: return on_retry(now, datagram);
    case Kind::accept: return on_accept(now, from, datagram);
    case Kind::refuse: return on_refuse(now, datagram);
    case Kind::reset: return on_reset(now, from, datagram);
    case Kind::knock: return on_knock(now, from, datagram);
    case Kind::versions: return on_versions(now, datagram);
  }
}

// A packet of another job, or one under another secret. From the address of a peer we are waiting for, the secrets
// differ.
void Endpoint::reject(const Address& from) {
  ++counters_.authentication_failed;
  hint(from, Failure::authentication);
}

// What to report if the peer at that address never answers as it should. Anybody can send such packets, so they change
// nothing else.
void Endpoint::hint(const Address& from, Failure failure) {
  for (auto& [rank, peer] : peers_)
    if (peer.state == Peer::State::greeting && peer.address == from && peer.hint == Failure::none) peer.hint = failure;
}

void Endpoint::answer(Time now, const Address& to, Datagram bytes) {
  if (answers_.size() < kAnswersMost && budget_.take(now)) answers_.push_back({to, std::move(bytes)});
}

void Endpoint::on_sealed(Time now, const Address& from, MutableBytes datagram) {
  SealedHeader header;
  if (!parse(datagram, header)) {
    ++counters_.malformed;
    return;
  }
  auto found = by_connection_.find(header.connection);
  if (found != by_connection_.end()) {
    Peer& peer = *found->second;
    bool newest = peer.connection->handle_packet(now, header, datagram);
    follow(now, from, peer, newest);
    return collect_events(now, peer);
  }
  ++counters_.stray;
  // Never longer than the packet it answers, and rate-limited: useless for an attack on a third party.
  if (datagram.size() < kResetSize || now < next_reset_) return;
  next_reset_ = now + kResetEvery;
  ++counters_.resets_sent;
  answer(now, from, handshake_.sealed(Reset{header.connection, self_.rank, self_.epoch}));
}

// A peer behind a NAT that forgot it, or on another network, sends from another address.
// 1. Only a packet that is authentic and newer than all others shows one: an old one may have been kept and repeated.
// 2. It gets a CHALLENGE, which is never longer than a packet of data and is sent at most ten times a second.
// 3. The right RESPONSE makes it the peer's address. Until then everything else goes to the old one.
void Endpoint::follow(Time now, const Address& from, Peer& peer, bool newest) {
  std::uint64_t response = peer.connection->take_response();
  if (peer.move && response && response == peer.move->token) {
    bool other_path = peer.address.ip != peer.move->to.ip;
    peer.address = peer.move->to;
    peer.move.reset();
    ++counters_.moves;
    if (other_path) peer.connection->on_new_path(now);
  }
  if (!newest || from == peer.address) return;
  if (now - peer.challenged_at < kChallengeEvery) return;
  if (!peer.move || peer.move->to != from) peer.move = Peer::Move{from, handshake_.fresh_number() | 1};
  peer.challenged_at = now;
  Datagram challenge(kLeastRoom);
  challenge.resize(peer.connection->poll_challenge(now, challenge, peer.move->token));
  if (challenge.empty()) return;
  ++counters_.challenges_sent;
  pending_datagrams_.push_back({from, std::move(challenge)});
}

// 1. Without the secret there is no answer.
// 2. With the secret the answer is a cookie; no state is stored until the cookie comes back.
// 3. Then the HELLO is refused with a reason, or accepted; a repeated HELLO gets the same answer again.
void Endpoint::on_hello(Time now, const Address& from, Bytes datagram) {
  Hello hello;
  if (!parse(datagram, hello)) {
    ++counters_.malformed;
    return;
  }
  if (!handshake_.authentic(datagram)) return reject(from);
  auto refuse = [&](Refusal reason) {
    answer(now, from, handshake_.sealed(Refuse{reason, hello.connection, self_.epoch}, hello.nonce));
  };
  if (!handshake_.cookie_valid(now, from, hello)) {
    if (hello.cookie != Cookie{}) ++counters_.bad_cookie;
    ++counters_.retries_sent;
    answer(now, from, handshake_.sealed(Retry{hello.connection, handshake_.cookie(now, from, hello)}, hello.nonce));
    return;
  }
  if (hello.peer_rank != self_.rank || hello.rank >= self_.rank) return refuse(Refusal::wrong_rank);
  auto found = peers_.find(hello.rank);
  // connect() was not called yet: the peer repeats its HELLO until it is.
  if (found == peers_.end() || found->second.state == Peer::State::failed) return;
  Peer& peer = found->second;
  if (peer.connection) {
    const ConnectionStart& old = peer.connection->start();
    if (old.epoch == hello.epoch && peer.hello.nonce == hello.nonce && peer.hello.key == hello.key) {
      answer(now, from, peer.accept);
      return;
    }
    // A live connection is not replaced by a new HELLO; a silent one is.
    if (alive(now, peer)) return old.epoch == hello.epoch ? void() : refuse(Refusal::rank_in_use);
    if (peer.connection->confirmed())
      return fail(now, peer, old.epoch == hello.epoch ? Failure::half_open : Failure::restarted);
    if (!exchanges_.take(now)) return;
    // The peer never received it: its requests move to the next connection.
    peer.connection->hand_over(peer.early_sends, peer.early_receives);
    by_connection_.erase(old.local);
    peer.connection.reset();
  } else if (!exchanges_.take(now)) {
    return;
  }
  accept(now, from, peer, hello, datagram);
}

void Endpoint::accept(Time now, const Address& from, Peer& peer, const Hello& hello, Bytes datagram) {
  EphemeralKey key = handshake_.fresh_key();
  Accept answer;
  answer.encrypt = hello.encrypt || settings_.encrypt;
  answer.connection = hello.connection;
  answer.own_connection = fresh_connection();
  answer.rank = self_.rank;
  answer.epoch = self_.epoch;
  answer.nonce = handshake_.fresh_nonce();
  answer.credit = settings_.credit;
  answer.largest_datagram = settings_.largest_datagram;
  answer.key = key.public_key();
  Datagram accept = handshake_.sealed(answer, core(datagram));
  auto secrets = handshake_.keys(key, hello.key, core(datagram), accept);
  // A key of low order. Only a member of the job can have sent it.
  if (!secrets) return fail(now, peer, Failure::protocol);
  peer.hello.nonce = hello.nonce;
  peer.hello.key = hello.key;
  peer.address = from;
  peer.accept = std::move(accept);
  pending_datagrams_.push_back({from, peer.accept});
  ConnectionStart begin;
  begin.rank = peer.rank;
  begin.epoch = hello.epoch;
  begin.local = answer.own_connection;
  begin.remote = hello.connection;
  begin.sealing = secrets->responder;
  begin.opening = secrets->initiator;
  begin.encrypt = answer.encrypt;
  begin.peer_credit = hello.credit;
  begin.largest_datagram = std::min(hello.largest_datagram, settings_.largest_datagram);
  // The cookie's age is one round trip plus the initiator's processing time.
  begin.rtt = round_trip(now - static_cast<Time>(Reader(hello.cookie).u64()));
  start(now, peer, begin);
}

void Endpoint::on_retry(Time now, Bytes datagram) {
  Retry retry;
  if (!parse(datagram, retry)) {
    ++counters_.malformed;
    return;
  }
  Peer* peer = greeting_peer(retry.connection);
  if (!peer) return;
  if (!handshake_.authentic(datagram, peer->hello.nonce)) return reject(peer->address);
  // The first cookie is used at once. Later ones (the old one expired, or an attacker replays a captured RETRY, which
  // has 1/26 of the size of a HELLO) are used in the next greeting, unless the last greeting was at least kKnockAnswer
  // ago.
  bool first = peer->hello.cookie == Cookie{};
  peer->hello.cookie = retry.cookie;
  if (!peer->asked_at) peer->asked_at = now;
  if (first || now - peer->greeted_at >= kKnockAnswer) send_greeting(now, *peer);
}

// ACCEPT is bound to our nonce: it comes from the peer, wherever it was sent from.
void Endpoint::on_accept(Time now, const Address& from, Bytes datagram) {
  Accept answer;
  if (!parse(datagram, answer)) {
    ++counters_.malformed;
    return;
  }
  Peer* peer = greeting_peer(answer.connection);
  if (!peer) return;
  HelloCore hello = core(peer->hello);
  if (!handshake_.authentic(datagram, hello)) return reject(peer->address);
  if (answer.rank != peer->rank) return fail(now, *peer, Failure::wrong_rank);
  auto secrets = handshake_.keys(*peer->key, answer.key, hello, datagram);
  if (!secrets) return fail(now, *peer, Failure::protocol);
  ConnectionStart begin;
  begin.rank = peer->rank;
  begin.epoch = answer.epoch;
  begin.local = answer.connection;
  begin.remote = answer.own_connection;
  begin.sealing = secrets->initiator;
  begin.opening = secrets->responder;
  begin.encrypt = answer.encrypt;
  begin.confirmed = true;
  begin.peer_credit = answer.credit;
  begin.largest_datagram = std::min(answer.largest_datagram, settings_.largest_datagram);
  begin.rtt = round_trip(now - peer->asked_at);
  peer->address = from;
  start(now, *peer, begin);
}

void Endpoint::on_refuse(Time now, Bytes datagram) {
  Refuse refusal;
  if (!parse(datagram, refusal)) {
    ++counters_.malformed;
    return;
  }
  if (refusal.connection == 0) {
    // An answer to our KNOCK: another process has our rank.
    if (!handshake_.authentic(datagram, number_bytes(self_.epoch))) return;
    for (auto& [rank, peer] : peers_)
      if (peer.state == Peer::State::greeting && !peer.initiator) peer.hint = Failure::rank_in_use;
    return;
  }
  Peer* peer = greeting_peer(refusal.connection);
  if (!peer) return;
  if (!handshake_.authentic(datagram, peer->hello.nonce)) return reject(peer->address);
  switch (refusal.reason) {
    // The other process of our rank may have died just now: repeat until the deadline.
    case Refusal::rank_in_use: peer->hint = Failure::rank_in_use; return;
    case Refusal::too_many_peers: return fail(now, *peer, Failure::too_many_peers);
    default: return fail(now, *peer, Failure::wrong_rank);
  }
}

void Endpoint::on_reset(Time now, const Address& from, Bytes datagram) {
  Reset reset;
  if (!parse(datagram, reset)) {
    ++counters_.malformed;
    return;
  }
  auto found = peers_.find(reset.rank);
  if (found == peers_.end() || !found->second.connection || found->second.address != from) return;
  Peer& peer = found->second;
  // Before our ACCEPT has arrived the peer does not know the connection: it repeats HELLO, and we answer again.
  if (peer.connection->start().remote != reset.connection || !peer.connection->confirmed()) return;
  if (!handshake_.authentic(datagram)) return reject(from);
  fail(now, peer, reset.epoch == peer.connection->start().epoch ? Failure::half_open : Failure::restarted);
}

void Endpoint::on_knock(Time now, const Address& from, Bytes datagram) {
  Knock knock;
  if (!parse(datagram, knock)) {
    ++counters_.malformed;
    return;
  }
  if (!handshake_.authentic(datagram)) return reject(from);
  auto found = peers_.find(knock.rank);
  if (knock.peer_rank != self_.rank || found == peers_.end() || !found->second.initiator) return;
  Peer& peer = found->second;
  if (peer.state == Peer::State::greeting) {
    // A responder behind a NAT is reached only where its KNOCK came from. Anybody may repeat a KNOCK from elsewhere:
    // that address then gets HELLOs, no more often than the peer does and only until the connection exists or has
    // failed.
    if (peer.address != from) peer.knocked_from = from;
    if (now - peer.greeted_at >= kKnockAnswer) send_greeting(now, peer);
    return;
  }
  if (!peer.connection || peer.connection->start().epoch == knock.epoch) return;
  if (alive(now, peer))
    answer(now, from, handshake_.sealed(Refuse{Refusal::rank_in_use, 0, self_.epoch}, number_bytes(knock.epoch)));
  else
    fail(now, peer, Failure::restarted);
}

// The answer names the versions of this endpoint; without the secret there is none, as for every HELLO.
void Endpoint::on_other_version(Time now, const Address& from, Bytes datagram) {
  ++counters_.wrong_version;
  auto kind = static_cast<Kind>(datagram[0] & 15);
  if (kind == Kind::hello || kind == Kind::knock) hint(from, Failure::wrong_version);
  AnyHello hello;
  if (!parse(datagram, hello) || !handshake_.authentic(datagram)) return;
  answer(now, from, handshake_.sealed(Versions{hello.connection}, hello.nonce));
}

void Endpoint::on_versions(Time now, Bytes datagram) {
  Versions versions;
  if (!parse(datagram, versions)) {
    ++counters_.malformed;
    return;
  }
  Peer* peer = greeting_peer(versions.connection);
  if (!peer) return;
  if (!handshake_.authentic(datagram, peer->hello.nonce)) return reject(peer->address);
  // An answer to another HELLO than ours would have another nonce.
  if (versions.lowest > kVersion || versions.highest < kVersion) fail(now, *peer, Failure::wrong_version);
}

}  // namespace gradwire::ltp
