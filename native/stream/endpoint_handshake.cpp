// Loop: sockets that are not authenticated yet: accepting and limiting them, and the handshake of both sides.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>

#include "core/random.h"
#include "stream/loop.h"

namespace gradwire::stream {
namespace {

// Incoming sockets held at once. A handshake needs one for a round trip; a peer whose socket is closed connects again.
constexpr std::size_t kPendingMost = 256;
// From one address: a quarter, so that one host cannot evict the sockets of others.
constexpr std::size_t kPendingPerAddress = kPendingMost / 4;
// A HELLO follows the challenge after one round trip; this allows one retransmission on a path of 500 ms.
constexpr Time kPendingLife = 2 * kSecond;
// Accepted connections of one rank without a frame yet. A correct rank has one, plus those that it abandoned without
// our notice.
constexpr std::size_t kCandidatesMost = 4;

bool send_with(int socket, Bytes bytes, std::initializer_list<int> descriptors) {
  iovec piece{const_cast<std::uint8_t*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  if (descriptors.size()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), descriptors.begin(), descriptors.size() * sizeof(int));
  }
  // A greeting always fits an empty socket buffer.
  return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(bytes.size());
}

// Reads into `bytes`; descriptors that arrive go to `offer`: the last is the doorbell, one before it the memory.
std::ptrdiff_t receive_with(int socket, MutableBytes bytes, RingOffer& offer) {
  iovec piece{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))];
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t count = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (count < 0) return errno == EAGAIN || errno == EINTR ? 0 : -1;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    std::size_t descriptors = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < descriptors; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      if (offer.bell.get() >= 0) offer.memory = std::move(offer.bell);
      offer.bell.reset(fd);
    }
  }
  return count == 0 ? -1 : count;
}

Nonce fresh_nonce() {
  Nonce nonce;
  fill_random(nonce);
  return nonce;
}

}  // namespace

void Loop::on_listener(Time now) {
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
    evict_oldest(pending.from);
    Greeting challenge;
    challenge.kind = Greeting::Kind::challenge;
    challenge.nonce = fresh_nonce();
    pending.sent = greeter_.write(challenge);
    if (!send_with(fd, pending.sent, {})) continue;
    pending.deadline = now + kPendingLife;
    watch(fd, EPOLLIN, false);
    pending_[fd] = std::move(pending);
  }
}

// Closes the oldest incoming socket when there are too many: of the same address when that has its share, else of all.
void Loop::evict_oldest(const Address& from) {
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
  drop_pending(crowded ? oldest_same.second : oldest.second);
}

void Loop::drop_pending(int fd) {
  auto found = pending_.find(fd);
  if (found == pending_.end()) return;
  if (found->second.rank)
    if (Peer* peer = find(*found->second.rank); peer && peer->pending == fd) {
      peer->pending = -1;
      if (peer->state == Peer::State::waiting) peer->next_try = monotonic_now() + kRetry;
    }
  pending_.erase(found);
}

// False: the socket can be closed.
bool Loop::on_pending(Time now, PendingSocket& pending) {
  if (pending.rank && pending.stage == PendingSocket::Stage::connecting) return on_connected(pending);
  std::ptrdiff_t count =
      receive_with(pending.socket.get(), MutableBytes(pending.bytes).subspan(pending.got), pending.offer);
  if (count < 0) return false;
  pending.got += static_cast<std::size_t>(count);
  if (pending.got < kGreeting) return true;
  if (pending.rank && pending.stage == PendingSocket::Stage::connected) return on_challenge(pending);
  if (pending.rank)
    on_answer(now, pending);
  else
    on_hello(now, pending);
  return false;
}

bool Loop::on_connected(PendingSocket& pending) {
  int error = 0;
  socklen_t size = sizeof error;
  if (::getsockopt(pending.socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) < 0 || error) return false;
  pending.stage = PendingSocket::Stage::connected;
  watch(pending.socket.get(), EPOLLIN, true);
  return !config_.local || same_user(pending.socket.get());
}

// The challenge's own tag is not checked: the HELLO's tag covers it, and the responder must know the secret to answer.
bool Loop::on_challenge(PendingSocket& pending) {
  auto challenge = Greeter::parse(pending.bytes);
  if (!challenge || challenge->kind != Greeting::Kind::challenge) {
    ++counters_.malformed;
    return false;
  }
  Greeting hello;
  hello.encrypt = config_.encrypt;
  hello.rings = config_.local;
  hello.rank = config_.rank;
  hello.peer_rank = *pending.rank;
  hello.epoch = config_.epoch;
  hello.credit = config_.credit;
  hello.nonce = fresh_nonce();
  pending.sent = greeter_.write(hello, pending.bytes);
  pending.stage = PendingSocket::Stage::greeted;
  pending.got = 0;
  if (!config_.local) return send_with(pending.socket.get(), pending.sent, {});
  pending.offer = {make_ring_memory(config_.ring), {}};
  return send_with(pending.socket.get(), pending.sent, {pending.offer.memory.get(), event_.get()});
}

// 1. Without the secret the answer says only that, and the attempt is kept as a hint for the error message. The same
// holds for
//    a HELLO that answers another challenge than ours: it is a recording.
// 2. A wrong rank, and a second process of one rank, are refused with a reason.
// 3. A HELLO before our connect() is dropped; the peer connects again.
void Loop::on_hello(Time now, PendingSocket& pending) {
  auto hello = Greeter::parse(pending.bytes);
  if (!hello || hello->kind != Greeting::Kind::hello || hello->rings != config_.local)
    return void(++counters_.malformed);
  auto refuse = [&](Greeting::Refusal why) {
    Greeting answer;
    answer.kind = Greeting::Kind::refuse;
    answer.refusal = why;
    ++counters_.refused;
    send_with(pending.socket.get(), greeter_.write(answer, pending.bytes), {});
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

void Loop::accept(Time now, PendingSocket& pending, Peer& peer, const Greeting& hello) {
  Greeting answer;
  answer.kind = Greeting::Kind::accept;
  answer.encrypt = hello.encrypt || config_.encrypt;
  answer.rings = config_.local;
  answer.rank = config_.rank;
  answer.peer_rank = hello.rank;
  answer.epoch = config_.epoch;
  answer.credit = config_.credit;
  answer.nonce = fresh_nonce();
  GreetingBytes accept = greeter_.write(answer, pending.bytes);
  bool sent = config_.local ? send_with(pending.socket.get(), accept, {event_.get()})
                            : send_with(pending.socket.get(), accept, {});
  if (!sent) return;
  StreamSecrets secrets = greeter_.secrets(pending.bytes, accept);
  std::optional<Protection> protection;
  if (!config_.local) protection = Protection{secrets.responder, secrets.initiator, answer.encrypt};
  auto candidate = make_candidate(now, peer, pending, protection, hello);
  if (!candidate) return;
  if (peer.candidates.size() >= kCandidatesMost) drop_candidate(peer, peer.candidates.front().channel->fd());
  peer.candidates.push_back(std::move(*candidate));
}

void Loop::on_answer(Time now, PendingSocket& pending) {
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
  StreamSecrets secrets = greeter_.secrets(pending.sent, pending.bytes);
  std::optional<Protection> protection;
  if (!config_.local) protection = Protection{secrets.initiator, secrets.responder, answer->encrypt};
  auto made = make_candidate(now, *peer, pending, protection, *answer);
  if (!made) return;
  peer->outbox.set_credit(made->credit);
  promote(now, *peer, std::move(*made));
  flush(now, *peer);
}

// The connection after a successful handshake; none when the other side's shared memory is not valid.
std::optional<Loop::Candidate> Loop::make_candidate(Time now, Peer& peer, PendingSocket& pending,
                                                    const std::optional<Protection>& protection,
                                                    const Greeting& other) {
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
  watch(fd, EPOLLIN | EPOLLRDHUP, true);
  return made;
}

}  // namespace gradwire::stream
