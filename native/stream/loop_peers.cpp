// Peers of a loop: calling, greeting, streaming, timing out.
#include <fcntl.h>
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

// Refused connections are tried again this often until the connect deadline: ranks start one after the other.
constexpr ltp::Time kRetry = 50 * ltp::kMillisecond;
// Sockets of strangers held at once, and for how long before they must have spoken.
constexpr std::size_t kGuestsMost = 256;
constexpr ltp::Time kGuestLife = 10 * ltp::kSecond;

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

void Loop::say_hello(Guest& guest) {
  Greeting hello;
  hello.encrypt = config_.encrypt;
  hello.rings = config_.local;
  hello.rank = config_.rank;
  hello.peer_rank = *guest.rank;
  hello.epoch = config_.epoch;
  hello.credit = config_.credit;
  hello.nonce = fresh_nonce();
  guest.hello = greeter_.write(hello);
  guest.called = true;
  watch(guest.socket.get(), EPOLLIN, true);
  if (!config_.local) return void(send_with(guest.socket.get(), guest.hello, {}));
  if (!same_user(guest.socket.get())) return;
  guest.offer.memory = make_ring_memory(config_.ring);
  send_with(guest.socket.get(), guest.hello, {guest.offer.memory.get(), event_.get()});
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

void Loop::on_ready(ltp::Time now, int fd, std::uint32_t events) {
  if (fd == event_.get()) {
    std::uint64_t drained;
    [[maybe_unused]] ssize_t count = ::read(fd, &drained, sizeof drained);
    return;
  }
  if (fd == listener_.socket.get()) return on_listener(now);
  if (auto guest = guests_.find(fd); guest != guests_.end()) {
    if (!on_guest(now, guest->second)) drop_guest(fd);
    return;
  }
  auto stream = streams_.find(fd);
  if (stream == streams_.end()) return;
  Peer& peer = *find(stream->second);
  if (events & EPOLLOUT) flush(now, peer);
  if (peer.ring) {
    // The socket of a pair of rings speaks only by ending; what is left in the rings comes first.
    while (peer.ring && peer.ring->readable()) on_stream(now, peer);
    if (peer.ring && (events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP | EPOLLIN))) lose(peer, ltp::Failure::vanished);
  } else if (peer.connection && (events & (EPOLLIN | EPOLLHUP | EPOLLERR))) {
    on_stream(now, peer);
  }
}

void Loop::on_listener(ltp::Time now) {
  for (int accepted = 0; accepted < 16; ++accepted) {
    Guest guest;
    guest.socket.reset(::accept4(listener_.socket.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    int fd = guest.socket.get();
    if (fd < 0) return;
    if (guests_.size() >= kGuestsMost || (config_.local && !same_user(fd))) {
      ++counters_.dropped;
      continue;
    }
    ++counters_.accepted;
    guest.deadline = now + kGuestLife;
    watch(fd, EPOLLIN, false);
    guests_[fd] = std::move(guest);
  }
}

// False: it may go.
bool Loop::on_guest(ltp::Time now, Guest& guest) {
  int fd = guest.socket.get();
  if (guest.rank && !guest.called) {
    int error = 0;
    socklen_t size = sizeof error;
    if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0 || error) return false;
    say_hello(guest);
    return true;
  }
  std::ptrdiff_t count = receive_with(fd, MutableBytes(guest.bytes).subspan(guest.got), guest.offer);
  if (count < 0) return false;
  guest.got += static_cast<std::size_t>(count);
  if (guest.got < kGreeting) return true;
  if (guest.rank) on_answer(now, guest);
  else on_hello(now, guest);
  return false;
}

// 1. Who does not know the secret learns only that, and is remembered as a hint for the error message.
// 2. Wrong ranks, and second processes of one rank, are refused by name.
// 3. Who comes before we have asked for it is let go, and calls again.
void Loop::on_hello(ltp::Time now, Guest& guest) {
  auto hello = Greeter::parse(guest.bytes);
  if (!hello || hello->kind != Greeting::Kind::hello || hello->rings != config_.local) return void(++counters_.malformed);
  Greeting answer;
  answer.kind = Greeting::Kind::refuse;
  auto refuse = [&](Greeting::Refusal why) {
    answer.refusal = why;
    ++counters_.refused;
    send_with(guest.socket.get(), greeter_.write(answer, guest.bytes), {});
  };
  Peer* peer = find(hello->rank);
  if (!greeter_.authentic(guest.bytes)) {
    ++counters_.authentication_failed;
    if (peer && peer->state == Peer::State::waiting) peer->hint = ltp::Failure::authentication;
    return refuse(Greeting::Refusal::authentication);
  }
  if (hello->peer_rank != config_.rank || hello->rank >= config_.rank) return refuse(Greeting::Refusal::wrong_rank);
  if (!peer || peer->state == Peer::State::failed) return;
  if (peer->state == Peer::State::connected) {
    // A live connection is not given up for a new claim; one that has gone silent is.
    bool alive = now - peer->connection->last_heard() < 2 * config_.keepalive + ltp::kSecond / 2;
    if (alive) return peer->epoch == hello->epoch ? void() : refuse(Greeting::Refusal::rank_in_use);
    return fail(*peer, peer->epoch == hello->epoch ? ltp::Failure::half_open : ltp::Failure::restarted);
  }
  answer.kind = Greeting::Kind::accept;
  answer.encrypt = hello->encrypt || config_.encrypt;
  answer.rings = config_.local;
  answer.rank = config_.rank;
  answer.peer_rank = hello->rank;
  answer.epoch = config_.epoch;
  answer.credit = config_.credit;
  answer.nonce = fresh_nonce();
  GreetingBytes accept = greeter_.write(answer, guest.bytes);
  bool sent = config_.local ? send_with(guest.socket.get(), accept, {event_.get()}) : send_with(guest.socket.get(), accept, {});
  if (!sent) return;
  StreamSecrets secrets = greeter_.secrets(guest.bytes, accept);
  std::optional<Protection> protection;
  if (!config_.local) protection = Protection{secrets.responder, secrets.initiator, answer.encrypt};
  establish(now, *peer, std::move(guest.socket), std::move(guest.offer), protection, *hello, false);
}

void Loop::on_answer(ltp::Time now, Guest& guest) {
  Peer* peer = find(*guest.rank);
  if (!peer || peer->state != Peer::State::waiting || peer->guest != guest.socket.get()) return;
  auto answer = Greeter::parse(guest.bytes);
  if (!answer || answer->kind == Greeting::Kind::hello) return void(++counters_.malformed);
  if (!greeter_.authentic(guest.bytes, guest.hello)) {
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
  StreamSecrets secrets = greeter_.secrets(guest.hello, guest.bytes);
  std::optional<Protection> protection;
  if (!config_.local) protection = Protection{secrets.initiator, secrets.responder, answer->encrypt};
  establish(now, *peer, std::move(guest.socket), std::move(guest.offer), protection, *answer, true);
}

void Loop::establish(ltp::Time now, Peer& peer, io::Descriptor socket, RingOffer offer, const std::optional<Protection>& protection,
                     const Greeting& other, bool initiator) {
  int fd = socket.get();
  std::unique_ptr<Channel> channel;
  RingChannel* ring = nullptr;
  try {
    if (config_.local) channel.reset(ring = new RingChannel(std::move(socket), std::move(offer), initiator ? 0 : 1));
    else channel = std::make_unique<TcpChannel>(std::move(socket));
  } catch (const std::runtime_error&) {
    ++counters_.malformed;
    return;
  }
  hang_up(peer);  // a caller that has not proved to be there gives way to the next
  peer.channel = std::move(channel);
  peer.ring = ring;
  peer.guest = -1;
  peer.epoch = other.epoch;
  peer.next_try = ltp::kNever;
  peer.outbox.set_credit(other.credit);
  peer.connection.emplace(*peer.channel, peer.outbox, peer.inbox, peer.control, protection);
  peer.connection->heard(now);
  streams_[fd] = peer.number;
  watch(fd, EPOLLIN | EPOLLRDHUP, true);
  // The first frame proves to a responder that its caller is there now and not a recording.
  peer.control.push_front({FrameType::ping, 0, 0, 0, static_cast<std::uint64_t>(now), 0});
  if (initiator) peer.state = Peer::State::connected;
  changed_.notify_all();
  flush(now, peer);
}

void Loop::flush(ltp::Time now, Peer& peer) {
  // A responder writes nothing before its caller has proved to be there.
  if (!peer.connection || peer.state != Peer::State::connected) return;
  if (!peer.connection->flush(now)) return;  // reading tells why it is gone
  bool wanted = peer.connection->blocked() && peer.channel->polled_for_room();
  if (wanted == peer.watching_room) return;
  peer.watching_room = wanted;
  watch(peer.channel->fd(), EPOLLIN | EPOLLRDHUP | (wanted ? static_cast<std::uint32_t>(EPOLLOUT) : 0u), true);
}

void Loop::on_stream(ltp::Time now, Peer& peer) {
  using Status = Connection::Status;
  Status status = peer.connection->receive(now);
  if (peer.connection->confirmed() && peer.state == Peer::State::waiting) {
    peer.state = Peer::State::connected;
    changed_.notify_all();
  }
  switch (status) {
    case Status::gone: return lose(peer, ltp::Failure::vanished);
    case Status::goodbye: return fail(peer, ltp::Failure::closed);
    case Status::broken: ++counters_.malformed; return lose(peer, ltp::Failure::protocol);
    case Status::forged: ++counters_.authentication_failed; return lose(peer, ltp::Failure::protocol);
    default: flush(now, peer);
  }
}

void Loop::hang_up(Peer& peer) {
  if (peer.channel) streams_.erase(peer.channel->fd());
  peer.control.clear();
  peer.connection.reset();
  peer.ring = nullptr;
  peer.channel.reset();
}

// Its connection has ended. One that proved nothing may have been a recording: the peer itself may still call.
void Loop::lose(Peer& peer, ltp::Failure failure) {
  if (peer.state != Peer::State::waiting) return fail(peer, failure);
  peer.hint = ltp::Failure::half_open;
  hang_up(peer);
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
  }
  for (auto& [fd, guest] : guests_) next = std::min(next, guest.deadline);
  return next;
}

void Loop::on_timers(ltp::Time now) {
  for (auto& [rank, peer] : peers_) {
    if (peer->state == Peer::State::waiting) {
      if (now >= peer->deadline) fail(*peer, peer->connection ? ltp::Failure::half_open : peer->hint);
      else if (now >= peer->next_try) call(now, *peer);
    }
    if (!peer->connection) continue;
    if (now - peer->connection->last_heard() >= config_.dead_after) {
      lose(*peer, ltp::Failure::vanished);
    } else if (now - peer->connection->last_sent() >= config_.keepalive) {
      peer->connection->tried(now);
      if (peer->connection->blocked()) continue;
      // Also the moment at which the kernel's view of a quiet path is looked at.
      ltp::LinkStats seen;
      peer->channel->describe(seen);
      peer->control.push_back({FrameType::ping, 0, 0, 0, static_cast<std::uint64_t>(now), 0});
      flush(now, *peer);
    }
  }
  std::vector<int> late;
  for (auto& [fd, guest] : guests_)
    if (now >= guest.deadline) late.push_back(fd);
  for (int fd : late) drop_guest(fd);
}

}  // namespace gradwire::stream
