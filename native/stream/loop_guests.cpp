// Sockets that have proved nothing yet: accepting strangers, bounding them, and the greeting of both sides.
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>

#include "io/loop.h"
#include "stream/loop.h"

namespace gradwire::stream {
namespace {

using io::monotonic_now;

// Strangers held at once. A start needs a place for one round trip; who is put out calls again.
constexpr std::size_t kGuestsMost = 256;
// Of those from one address: a quarter, so that one host cannot put out those of others.
constexpr std::size_t kGuestsPerAddress = kGuestsMost / 4;
// A HELLO follows the challenge after one round trip; this is long enough for one that is sent twice on a path of 500 ms.
constexpr ltp::Time kGuestLife = 2 * ltp::kSecond;
// Callers of one rank that have not written a frame yet. A correct rank has one, and those that it gave up without our
// having heard of it.
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

// Reads into `bytes`; descriptors that come along go to `offer`: the last is the bell, one before it the memory.
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
  if (::getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size()))
    throw std::system_error(errno, std::generic_category(), "getrandom");
  return nonce;
}

}  // namespace

void Loop::on_listener(ltp::Time now) {
  for (int accepted = 0; accepted < 16; ++accepted) {
    Guest guest;
    guest.socket = accept_from(listener_, guest.from);
    int fd = guest.socket.get();
    if (fd < 0) return;
    if (config_.local && !same_user(fd)) {
      ++counters_.dropped;
      continue;
    }
    ++counters_.accepted;
    make_room(guest.from);
    Greeting challenge;
    challenge.kind = Greeting::Kind::challenge;
    challenge.nonce = fresh_nonce();
    guest.sent = greeter_.write(challenge);
    if (!send_with(fd, guest.sent, {})) continue;
    guest.deadline = now + kGuestLife;
    watch(fd, EPOLLIN, false);
    guests_[fd] = std::move(guest);
  }
}

// The oldest stranger gives way: of the same address when that has its share, else of all.
void Loop::make_room(const ltp::Address& from) {
  std::size_t all = 0, same = 0;
  std::pair<ltp::Time, int> oldest{ltp::kNever, -1}, oldest_same = oldest;
  for (auto& [fd, guest] : guests_) {
    if (guest.rank) continue;  // called by us
    ++all;
    oldest = std::min(oldest, {guest.deadline, fd});
    if (guest.from != from) continue;
    ++same;
    oldest_same = std::min(oldest_same, {guest.deadline, fd});
  }
  bool crowded = !config_.local && same >= kGuestsPerAddress;
  if (!crowded && all < kGuestsMost) return;
  ++counters_.dropped;
  drop_guest(crowded ? oldest_same.second : oldest.second);
}

void Loop::drop_guest(int fd) {
  auto found = guests_.find(fd);
  if (found == guests_.end()) return;
  if (found->second.rank)
    if (Peer* peer = find(*found->second.rank); peer && peer->guest == fd) {
      peer->guest = -1;
      if (peer->state == Peer::State::waiting) peer->next_try = monotonic_now() + kRetry;
    }
  guests_.erase(found);
}

// False: it may go.
bool Loop::on_guest(ltp::Time now, Guest& guest) {
  if (guest.rank && guest.stage == Guest::Stage::connecting) return on_connected(guest);
  std::ptrdiff_t count = receive_with(guest.socket.get(), MutableBytes(guest.bytes).subspan(guest.got), guest.offer);
  if (count < 0) return false;
  guest.got += static_cast<std::size_t>(count);
  if (guest.got < kGreeting) return true;
  if (guest.rank && guest.stage == Guest::Stage::connected) return on_challenge(guest);
  if (guest.rank) on_answer(now, guest);
  else on_hello(now, guest);
  return false;
}

bool Loop::on_connected(Guest& guest) {
  int error = 0;
  socklen_t size = sizeof error;
  if (::getsockopt(guest.socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) < 0 || error) return false;
  guest.stage = Guest::Stage::connected;
  watch(guest.socket.get(), EPOLLIN, true);
  return !config_.local || same_user(guest.socket.get());
}

// The challenge's own tag is not looked at: the HELLO's covers it, and who wrote it must know the secret to answer.
bool Loop::on_challenge(Guest& guest) {
  auto challenge = Greeter::parse(guest.bytes);
  if (!challenge || challenge->kind != Greeting::Kind::challenge) return ++counters_.malformed, false;
  Greeting hello;
  hello.encrypt = config_.encrypt;
  hello.rings = config_.local;
  hello.rank = config_.rank;
  hello.peer_rank = *guest.rank;
  hello.epoch = config_.epoch;
  hello.credit = config_.credit;
  hello.nonce = fresh_nonce();
  guest.sent = greeter_.write(hello, guest.bytes);
  guest.stage = Guest::Stage::greeted;
  guest.got = 0;
  if (!config_.local) return send_with(guest.socket.get(), guest.sent, {});
  guest.offer = {make_ring_memory(config_.ring), {}};
  return send_with(guest.socket.get(), guest.sent, {guest.offer.memory.get(), event_.get()});
}

// 1. Who does not know the secret learns only that, and is remembered as a hint for the error message. So does a HELLO
//    that answers another challenge than ours: it is a recording.
// 2. Wrong ranks, and second processes of one rank, are refused by name.
// 3. Who comes before we have asked for it is let go, and calls again.
void Loop::on_hello(ltp::Time now, Guest& guest) {
  auto hello = Greeter::parse(guest.bytes);
  if (!hello || hello->kind != Greeting::Kind::hello || hello->rings != config_.local) return void(++counters_.malformed);
  auto refuse = [&](Greeting::Refusal why) {
    Greeting answer;
    answer.kind = Greeting::Kind::refuse;
    answer.refusal = why;
    ++counters_.refused;
    send_with(guest.socket.get(), greeter_.write(answer, guest.bytes), {});
  };
  Peer* peer = find(hello->rank);
  if (!greeter_.authentic(guest.bytes, guest.sent)) {
    ++counters_.authentication_failed;
    if (peer && peer->state == Peer::State::waiting) peer->hint = ltp::Failure::authentication;
    return refuse(Greeting::Refusal::authentication);
  }
  if (hello->peer_rank != config_.rank || hello->rank >= config_.rank) return refuse(Greeting::Refusal::wrong_rank);
  if (!peer || peer->state == Peer::State::failed) return;
  if (peer->state == Peer::State::waiting) return accept(now, guest, *peer, *hello);
  // A live connection is not given up for a new claim; one that has gone silent is.
  bool alive = now - peer->connection->last_heard() < 2 * config_.keepalive + ltp::kSecond / 2;
  if (alive) return peer->epoch == hello->epoch ? void() : refuse(Greeting::Refusal::rank_in_use);
  fail(*peer, peer->epoch == hello->epoch ? ltp::Failure::half_open : ltp::Failure::restarted);
}

void Loop::accept(ltp::Time now, Guest& guest, Peer& peer, const Greeting& hello) {
  Greeting answer;
  answer.kind = Greeting::Kind::accept;
  answer.encrypt = hello.encrypt || config_.encrypt;
  answer.rings = config_.local;
  answer.rank = config_.rank;
  answer.peer_rank = hello.rank;
  answer.epoch = config_.epoch;
  answer.credit = config_.credit;
  answer.nonce = fresh_nonce();
  GreetingBytes accept = greeter_.write(answer, guest.bytes);
  bool sent = config_.local ? send_with(guest.socket.get(), accept, {event_.get()}) : send_with(guest.socket.get(), accept, {});
  if (!sent) return;
  StreamSecrets secrets = greeter_.secrets(guest.bytes, accept);
  std::optional<Protection> protection;
  if (!config_.local) protection = Protection{secrets.responder, secrets.initiator, answer.encrypt};
  auto candidate = agreed(now, peer, guest, protection, hello);
  if (!candidate) return;
  if (peer.candidates.size() >= kCandidatesMost) drop_candidate(peer, peer.candidates.front().channel->fd());
  peer.candidates.push_back(std::move(*candidate));
}

void Loop::on_answer(ltp::Time now, Guest& guest) {
  Peer* peer = find(*guest.rank);
  if (!peer || peer->state != Peer::State::waiting || peer->guest != guest.socket.get()) return;
  auto answer = Greeter::parse(guest.bytes);
  bool answers = answer && (answer->kind == Greeting::Kind::accept || answer->kind == Greeting::Kind::refuse);
  if (!answers) return void(++counters_.malformed);
  if (!greeter_.authentic(guest.bytes, guest.sent)) {
    ++counters_.authentication_failed;
    peer->hint = ltp::Failure::authentication;
    return;
  }
  if (answer->kind == Greeting::Kind::refuse) {
    if (answer->refusal == Greeting::Refusal::wrong_rank) fail(*peer, ltp::Failure::wrong_rank);
    // The other holder of our rank may be a process that just died: keep asking until the deadline.
    if (answer->refusal == Greeting::Refusal::rank_in_use) peer->hint = ltp::Failure::rank_in_use;
    return;
  }
  if (answer->rank != peer->number || answer->peer_rank != config_.rank) return fail(*peer, ltp::Failure::wrong_rank);
  StreamSecrets secrets = greeter_.secrets(guest.sent, guest.bytes);
  std::optional<Protection> protection;
  if (!config_.local) protection = Protection{secrets.initiator, secrets.responder, answer->encrypt};
  auto made = agreed(now, *peer, guest, protection, *answer);
  if (!made) return;
  peer->outbox.set_credit(made->credit);
  adopt(now, *peer, std::move(*made));
  flush(now, *peer);
}

// The connection that both sides have agreed on; nothing when the other's shared memory is not as it must be.
std::optional<Loop::Candidate> Loop::agreed(ltp::Time now, Peer& peer, Guest& guest, const std::optional<Protection>& protection,
                                            const Greeting& other) {
  int fd = guest.socket.get();
  Candidate made;
  made.epoch = other.epoch;
  made.credit = other.credit;
  try {
    if (config_.local) made.channel.reset(made.ring = new RingChannel(std::move(guest.socket), std::move(guest.offer), guest.rank ? 0 : 1));
    else made.channel = std::make_unique<TcpChannel>(std::move(guest.socket));
  } catch (const std::runtime_error&) {
    ++counters_.malformed;
    return std::nullopt;
  }
  made.connection = std::make_unique<Connection>(*made.channel, peer.outbox, peer.inbox, peer.control, protection);
  made.connection->heard(now);
  streams_[fd] = peer.number;
  watch(fd, EPOLLIN | EPOLLRDHUP, true);
  return made;
}

}  // namespace gradwire::stream
