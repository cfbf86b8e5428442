#include <algorithm>

#include "ltp/endpoint.h"

namespace gradwire::ltp {
namespace {

constexpr Time kResetEvery = 10 * kMillisecond;
constexpr Time kKnockAnswer = 50 * kMillisecond;
// Answers that wait for the socket. Beyond, none are given: they would be old when they leave.
constexpr std::size_t kAnswersMost = 1024;
constexpr std::size_t kResetSize = 2 + 4 + 4 + 8 + kTagSize;

std::array<std::uint8_t, 8> number_bytes(std::uint64_t number) {
  std::array<std::uint8_t, 8> bytes;
  Writer(bytes).u64(number);
  return bytes;
}

// No greeting follows another sooner than kKnockAnswer, so an answer within that time is to the only one. A later one may be
// to a repetition, after loss or because the peer was not ready: such a round trip is not known (0).
Time round_trip(Time elapsed) { return elapsed < kKnockAnswer ? std::max(elapsed, kMicrosecond) : 0; }

}  // namespace

void Endpoint::handle_datagram(Time now, const Address& from, MutableBytes datagram) {
  auto kind = peek_kind(datagram);
  if (!kind) {
    ++(datagram.empty() || datagram[0] >> 4 == kVersion ? counters_.malformed : counters_.wrong_version);
    return;
  }
  switch (*kind) {
    case Kind::sealed: return on_sealed(now, from, datagram);
    case Kind::hello: return on_hello(now, from, datagram);
    case Kind::retry: return on_retry(now, datagram);
    case Kind::accept: return on_accept(now, datagram);
    case Kind::refuse: return on_refuse(now, datagram);
    case Kind::reset: return on_reset(now, from, datagram);
    case Kind::knock: return on_knock(now, from, datagram);
  }
}

// A stranger's packet, or one under another secret. From the address of a peer we are waiting for it is a strong hint.
void Endpoint::reject(const Address& from) {
  ++counters_.authentication_failed;
  for (auto& [rank, peer] : peers_)
    if (peer.state == Peer::State::greeting && peer.address == from && peer.hint == Failure::none)
      peer.hint = Failure::authentication;
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
    // Packets of a connection come from the peer's address only: no migration, no reflection.
    if (peer.address != from) {
      ++counters_.stray;
      return;
    }
    peer.connection->handle_packet(now, header, datagram);
    return reap(now, peer);
  }
  ++counters_.stray;
  // Never longer than what it answers, and not often: useless to anybody who would aim it at a third party.
  if (datagram.size() < kResetSize || now < next_reset_) return;
  next_reset_ = now + kResetEvery;
  ++counters_.resets_sent;
  answer(now, from, handshake_.sealed(Reset{header.connection, self_.rank, self_.epoch}));
}

// 1. Strangers get no answer at all.
// 2. Holders of the secret get a cookie first; until it comes back, nothing is remembered of them.
// 3. Then: refused with a reason, or accepted; a repeated HELLO gets the same answer again.
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
  // Not asked for yet: the peer is early, and repeats itself until we are ready.
  if (found == peers_.end() || found->second.state == Peer::State::failed) return;
  Peer& peer = found->second;
  if (peer.connection) {
    const ConnectionStart& old = peer.connection->start();
    if (old.epoch == hello.epoch && peer.hello.nonce == hello.nonce) {
      answer(now, from, peer.accept);
      return;
    }
    // A live connection is not given up for a new claim; one that has gone silent is.
    if (alive(now, peer)) return old.epoch == hello.epoch ? void() : refuse(Refusal::rank_in_use);
    if (peer.connection->confirmed()) return fail(now, peer, old.epoch == hello.epoch ? Failure::half_open : Failure::restarted);
    // The peer never heard of it: what it was given to do is for the next one.
    peer.connection->hand_over(peer.early_sends, peer.early_receives);
    by_connection_.erase(old.local);
    peer.connection.reset();
  }
  accept(now, from, peer, hello);
}

void Endpoint::accept(Time now, const Address& from, Peer& peer, const Hello& hello) {
  Accept answer;
  answer.encrypt = hello.encrypt || settings_.encrypt;
  answer.connection = hello.connection;
  answer.own_connection = fresh_connection();
  answer.rank = self_.rank;
  answer.epoch = self_.epoch;
  answer.nonce = handshake_.fresh_nonce();
  answer.credit = settings_.credit;
  answer.largest_datagram = settings_.largest_datagram;
  TrafficSecrets secrets = handshake_.keys(hello, answer);
  peer.hello.nonce = hello.nonce;
  peer.address = from;
  peer.accept = handshake_.sealed(answer, Handshake::core(hello));
  letters_.push_back({from, peer.accept});
  ConnectionStart begin;
  begin.rank = peer.rank;
  begin.epoch = hello.epoch;
  begin.local = answer.own_connection;
  begin.remote = hello.connection;
  begin.sealing = secrets.responder;
  begin.opening = secrets.initiator;
  begin.encrypt = answer.encrypt;
  begin.peer_credit = hello.credit;
  begin.largest_datagram = std::min(hello.largest_datagram, settings_.largest_datagram);
  // The cookie's age is one round trip (and the initiator's turnaround).
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
  // The first cookie is used at once. Later ones (the old one expired, or somebody repeats a captured RETRY, which is a
  // twenty-sixth of a HELLO) wait for the next greeting unless the last was a while ago.
  bool first = peer->hello.cookie == Cookie{};
  peer->hello.cookie = retry.cookie;
  if (!peer->asked_at) peer->asked_at = now;
  if (first || now - peer->greeted_at >= kKnockAnswer) greet(now, *peer);
}

void Endpoint::on_accept(Time now, Bytes datagram) {
  Accept answer;
  if (!parse(datagram, answer)) {
    ++counters_.malformed;
    return;
  }
  Peer* peer = greeting_peer(answer.connection);
  if (!peer) return;
  if (!handshake_.authentic(datagram, Handshake::core(peer->hello))) return reject(peer->address);
  if (answer.rank != peer->rank) return fail(now, *peer, Failure::wrong_rank);
  TrafficSecrets secrets = handshake_.keys(peer->hello, answer);
  ConnectionStart begin;
  begin.rank = peer->rank;
  begin.epoch = answer.epoch;
  begin.local = answer.connection;
  begin.remote = answer.own_connection;
  begin.sealing = secrets.initiator;
  begin.opening = secrets.responder;
  begin.encrypt = answer.encrypt;
  begin.confirmed = true;
  begin.peer_credit = answer.credit;
  begin.largest_datagram = std::min(answer.largest_datagram, settings_.largest_datagram);
  begin.rtt = round_trip(now - peer->asked_at);
  start(now, *peer, begin);
}

void Endpoint::on_refuse(Time now, Bytes datagram) {
  Refuse refusal;
  if (!parse(datagram, refusal)) {
    ++counters_.malformed;
    return;
  }
  if (refusal.connection == 0) {
    // An answer to our KNOCK: somebody else already is who we say we are.
    if (!handshake_.authentic(datagram, number_bytes(self_.epoch))) return;
    for (auto& [rank, peer] : peers_)
      if (peer.state == Peer::State::greeting && !peer.initiator) peer.hint = Failure::rank_in_use;
    return;
  }
  Peer* peer = greeting_peer(refusal.connection);
  if (!peer) return;
  if (!handshake_.authentic(datagram, peer->hello.nonce)) return reject(peer->address);
  switch (refusal.reason) {
    // The other holder of our rank may be a process of ours that just died: keep asking until the deadline.
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
  // Before our ACCEPT has arrived nobody there knows the connection: HELLO comes again, and our answer to it.
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
    if (peer.address == from && now - peer.greeted_at >= kKnockAnswer) greet(now, peer);
    return;
  }
  if (!peer.connection || peer.connection->start().epoch == knock.epoch) return;
  if (alive(now, peer))
    answer(now, from, handshake_.sealed(Refuse{Refusal::rank_in_use, 0, self_.epoch}, number_bytes(knock.epoch)));
  else
    fail(now, peer, Failure::restarted);
}

}  // namespace gradwire::ltp
