// Endpoint: the handshake of both sides, up to a connection.
#include <poll.h>
#include <sys/socket.h>

#include <stdexcept>

#include "core/random.h"
#include "stream/endpoint.h"

namespace gradwire::stream {
namespace {

// Accepted connections of one rank without a frame yet. A correct rank has one, plus those that it abandoned without
// our notice.
constexpr std::size_t kCandidatesMost = 4;

Nonce fresh_nonce() {
  Nonce nonce;
  fill_random(nonce);
  return nonce;
}

EphemeralKey fresh_key() {
  HeldSecret seed;
  fill_random(seed);
  return EphemeralKey(seed);
}

}  // namespace

bool Endpoint::send_challenge(PendingSocket& pending) {
  Greeting challenge;
  challenge.kind = Greeting::Kind::challenge;
  challenge.nonce = fresh_nonce();
  pending.sent = greeter_.write(challenge);
  return pending.send(pending.sent);
}

bool Endpoint::on_connected(PendingSocket& pending) {
  int error = 0;
  socklen_t size = sizeof error;
  if (::getsockopt(pending.socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) < 0 || error) return false;
  pending.stage = PendingSocket::Stage::connected;
  poller_.watch(pending.socket.get(), POLLIN, true);
  return !config_.local || same_user(pending.socket.get());
}

Greeting Endpoint::own_greeting(Greeting::Kind kind, std::uint32_t peer_rank) const {
  Greeting own;
  own.kind = kind;
  own.encrypt = config_.encrypt;
  own.rings = config_.local;
  own.rank = config_.rank;
  own.peer_rank = peer_rank;
  own.epoch = config_.epoch;
  own.credit = config_.credit;
  own.nonce = fresh_nonce();
  return own;
}

// Anybody can write such bytes, so they only change the reason that is given if the peer never answers as it should.
// The connecting side sends a HELLO nevertheless: it carries this side's version.
void Endpoint::on_other_version(PendingSocket& pending, std::uint32_t rank) {
  ++counters_.wrong_version;
  if (pending.rank) pending.send(greeter_.write(own_greeting(Greeting::Kind::hello, *pending.rank)));
  Peer* peer = find(pending.rank.value_or(rank));
  if (peer && peer->state == Peer::State::waiting) peer->hint = Failure::wrong_version;
}

// The challenge's own tag is not checked: the HELLO's tag covers it, and the responder must know the secret to answer.
bool Endpoint::on_challenge(PendingSocket& pending) {
  auto challenge = Greeter::parse(pending.bytes);
  if (!challenge || challenge->kind != Greeting::Kind::challenge) {
    ++counters_.malformed;
    return false;
  }
  Greeting hello = own_greeting(Greeting::Kind::hello, *pending.rank);
  if (!config_.local) hello.key = pending.key.emplace(fresh_key()).public_key();
  pending.sent = greeter_.write(hello, pending.bytes);
  pending.stage = PendingSocket::Stage::greeted;
  pending.got = 0;
  if (!config_.local) return pending.send(pending.sent);
  pending.offer = {make_ring_memory(config_.ring), {}};
  return pending.send(pending.sent, {pending.offer.memory.get(), poller_.bell()});
}

// 1. Without the secret the answer says only that, and the attempt is kept as a hint for the error message. The same
//    holds for a HELLO that answers another challenge than ours: it is a recording.
// 2. A wrong rank, and a second process of one rank, are refused with a reason.
// 3. A HELLO before our connect() is dropped; the peer connects again.
void Endpoint::on_hello(Time now, PendingSocket& pending) {
  auto hello = Greeter::parse(pending.bytes);
  if (!hello || hello->kind != Greeting::Kind::hello || hello->rings != config_.local)
    return void(++counters_.malformed);
  auto refuse = [&](Greeting::Refusal why) {
    Greeting answer;
    answer.kind = Greeting::Kind::refuse;
    answer.refusal = why;
    ++counters_.refused;
    pending.send(greeter_.write(answer, pending.bytes));
  };
  Peer* peer = find(hello->rank);
  if (!greeter_.authentic(pending.bytes, pending.sent)) {
    ++counters_.authentication_failed;
    if (peer && peer->state == Peer::State::waiting) peer->hint = Failure::authentication;
    return refuse(Greeting::Refusal::authentication);
  }
  if (hello->peer_rank != config_.rank || hello->rank >= config_.rank) return refuse(Greeting::Refusal::wrong_rank);
  if (!peer || peer->state == Peer::State::failed) return;
  if (peer->state == Peer::State::waiting) return accept(now, pending, *peer, *hello);
  // A live connection is not replaced by a new HELLO; a silent one is.
  bool alive = now - peer->connection->last_received() < 2 * config_.keepalive + kSecond / 2;
  if (alive) return peer->epoch == hello->epoch ? void() : refuse(Greeting::Refusal::rank_in_use);
  fail(*peer, peer->epoch == hello->epoch ? Failure::half_open : Failure::restarted);
}

void Endpoint::accept(Time now, PendingSocket& pending, Peer& peer, const Greeting& hello) {
  Greeting answer = own_greeting(Greeting::Kind::accept, hello.rank);
  answer.encrypt |= hello.encrypt;
  std::optional<EphemeralKey> key;
  if (!config_.local) answer.key = key.emplace(fresh_key()).public_key();
  GreetingBytes accept = greeter_.write(answer, pending.bytes);
  std::optional<Protection> protection;
  if (key) {
    auto secrets = greeter_.secrets(*key, hello.key, pending.bytes, accept);
    // A key of low order. Only a member of the job can have sent it.
    if (!secrets) return fail(peer, Failure::protocol);
    protection = Protection{secrets->responder, secrets->initiator, answer.encrypt};
  }
  bool sent = config_.local ? pending.send(accept, {poller_.bell()}) : pending.send(accept);
  if (!sent) return;
  auto candidate = make_candidate(now, peer, pending, protection, hello);
  if (!candidate) return;
  if (peer.candidates.size() >= kCandidatesMost) drop_candidate(peer, peer.candidates.front().channel->fd());
  peer.candidates.push_back(std::move(*candidate));
}

void Endpoint::on_answer(Time now, PendingSocket& pending) {
  Peer* peer = find(*pending.rank);
  if (!peer || peer->state != Peer::State::waiting || peer->pending != pending.socket.get()) return;
  auto answer = Greeter::parse(pending.bytes);
  bool answers = answer && (answer->kind == Greeting::Kind::accept || answer->kind == Greeting::Kind::refuse);
  if (!answers) return void(++counters_.malformed);
  if (!greeter_.authentic(pending.bytes, pending.sent)) {
    ++counters_.authentication_failed;
    peer->hint = Failure::authentication;
    return;
  }
  if (answer->kind == Greeting::Kind::refuse) {
    if (answer->refusal == Greeting::Refusal::wrong_rank) fail(*peer, Failure::wrong_rank);
    // The other process of our rank may have died just now: repeat until the deadline.
    if (answer->refusal == Greeting::Refusal::rank_in_use) peer->hint = Failure::rank_in_use;
    return;
  }
  if (answer->rank != peer->number || answer->peer_rank != config_.rank) return fail(*peer, Failure::wrong_rank);
  std::optional<Protection> protection;
  if (pending.key) {
    auto secrets = greeter_.secrets(*pending.key, answer->key, pending.sent, pending.bytes);
    if (!secrets) return fail(*peer, Failure::protocol);
    protection = Protection{secrets->initiator, secrets->responder, answer->encrypt};
  }
  auto made = make_candidate(now, *peer, pending, protection, *answer);
  if (!made) return;
  peer->outbox.set_credit(made->credit);
  promote(now, *peer, std::move(*made));
  flush(now, *peer);
}

// The connection after a successful handshake; none when the other side's shared memory is not valid.
std::optional<Candidate> Endpoint::make_candidate(Time now, Peer& peer, PendingSocket& pending,
                                                  const std::optional<Protection>& protection, const Greeting& other) {
  int fd = pending.socket.get();
  Candidate made;
  made.epoch = other.epoch;
  made.credit = other.credit;
  try {
    if (config_.local)
      made.channel.reset(
          made.ring = new RingChannel(std::move(pending.socket), std::move(pending.offer), pending.rank ? 0 : 1));
    else
      made.channel = std::make_unique<TcpChannel>(std::move(pending.socket));
  } catch (const std::runtime_error&) {
    ++counters_.malformed;
    return std::nullopt;
  }
  made.connection = std::make_unique<Connection>(*made.channel, peer.outbox, peer.inbox, peer.control, protection);
  made.connection->mark_received(now);
  streams_[fd] = peer.number;
  poller_.watch(fd, POLLIN | POLLRDHUP, true);
  return made;
}

}  // namespace gradwire::stream
