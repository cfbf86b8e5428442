#include "stream/loop.h"

#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <chrono>

namespace gradwire::stream {
namespace {

// How long after the last waiting caller the thread takes over: between two waits of a caller it should not.
constexpr std::chrono::milliseconds kIdle{2};
constexpr Time kIdleTime = 2 * kMillisecond;

}  // namespace

Loop::Loop(LoopConfig config)
    : config_(std::move(config)),
      greeter_(config_.secret),
      own_address_(config_.local ? Address{} : parse_address(config_.host, config_.port)),
      listener_(config_.local ? listen_local(config_.port) : listen_tcp(own_address_)),
      epoll_(checked(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      event_(checked(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd")) {
  watch(listener_.socket.get(), EPOLLIN, false);
  watch(event_.get(), EPOLLIN, false);
  thread_ = std::thread([this] { run(); });
}

Loop::~Loop() { close(); }

void Loop::wake() {
  if (!driving_) return;
  signal(event_);
}

void Loop::watch(int fd, std::uint32_t events, bool added) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (::epoll_ctl(epoll_.get(), added ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event) < 0) throw_errno("epoll_ctl");
}

// The top of a thread: an exception ends the loop, and every waiter gets its text.
void Loop::run() {
  std::unique_lock lock(mutex_);
  try {
    while (!stopping_) {
      bool wanted = callers_ > 0 || monotonic_now() - last_caller_ < kIdleTime;
      if (driving_ || wanted) {
        idle_.wait_for(lock, kIdle);
      } else {
        driving_ = true;
        drive(lock, kNever, true);
        driving_ = false;
        if (callers_) changed_.notify_all();
      }
    }
  } catch (const std::exception& caught) {
    error_ = caught.what();
  }
  driving_ = false;
  stopped_ = true;
  changed_.notify_all();
}

// Runs the loop until `ready` holds, or waits for the thread that runs it.
template <class Ready>
bool Loop::drive_until(std::unique_lock<std::mutex>& lock, Time deadline, Ready ready) {
  ++callers_;
  while (!ready() && !stopped_ && !stopping_) {
    Time now = monotonic_now();
    if (driving_) {
      if (now >= deadline) break;
      changed_.wait_until(lock, clock_point(deadline));
      continue;
    }
    driving_ = true;
    try {
      drive(lock, deadline, false);
    } catch (const std::exception& caught) {
      error_ = caught.what();
      stopping_ = stopped_ = true;
    }
    driving_ = false;
    if (callers_ > 1) changed_.notify_all();
    if (now >= deadline) break;
  }
  --callers_;
  last_caller_ = monotonic_now();
  return ready();
}

bool Loop::rings_ready() {
  for (auto& [rank, peer] : peers_) {
    if (peer->ring && (peer->ring->readable() || (peer->connection->blocked() && peer->ring->writable()))) return true;
    for (const Candidate& candidate : peer->candidates)
      if (candidate.ring && candidate.ring->readable()) return true;
  }
  return false;
}

// The clock is read for each peer: while others were served, a peer may have answered what was just sent to it.
bool Loop::poll_rings() {
  bool any = false;
  auto readable = [](const Candidate& candidate) { return candidate.ring && candidate.ring->readable(); };
  for (auto& [rank, peer] : peers_) {
    if (peer->ring && peer->ring->readable()) {
      any = true;
      on_stream(monotonic_now(), *peer);
    }
    if (peer->ring && peer->connection->blocked() && peer->ring->writable()) {
      any = true;
      flush(monotonic_now(), *peer);
    }
    auto found = std::find_if(peer->candidates.begin(), peer->candidates.end(), readable);
    if (found != peer->candidates.end()) {
      any = true;
      on_candidate(monotonic_now(), *peer, found->channel->fd(), 0);
    }
  }
  return any;
}

int Loop::wait_for_events(std::unique_lock<std::mutex>& lock, Time deadline, epoll_event* ready, int most) {
  auto mark = [&](bool asleep) {
    for (auto& [rank, peer] : peers_) {
      if (peer->ring) peer->ring->set_asleep(asleep);
      for (const Candidate& candidate : peer->candidates)
        if (candidate.ring) candidate.ring->set_asleep(asleep);
    }
  };
  mark(true);
  Time left = rings_ready() || stopping_ ? 0 : deadline - monotonic_now();
  // Rounded up, or the last millisecond would be spent in a busy loop.
  int timeout = left <= 0 ? 0 : static_cast<int>(std::min<Time>((left + kMillisecond - 1) / kMillisecond, 3'600'000));
  lock.unlock();
  int count = ::epoll_wait(epoll_.get(), ready, most, timeout);
  lock.lock();
  mark(false);
  ++counters_.wakes;
  return count;
}

void Loop::drive(std::unique_lock<std::mutex>& lock, Time deadline, bool patient) {
  Time now = monotonic_now();
  bool worked = poll_rings();
  epoll_event ready[32];
  int count = 0;
  if (!worked && !patient) {
    // The answer of a process on another core arrives sooner than a sleeping thread wakes up. Yield, as others may need
    // this core.
    for (Time end = now + std::min(config_.spin, deadline - now);
         !worked && count <= 0 && !stopping_ && monotonic_now() < end;) {
      lock.unlock();
      ::sched_yield();
      if (!config_.local) count = ::epoll_wait(epoll_.get(), ready, 32, 0);
      lock.lock();
      worked = poll_rings();
    }
  }
  if (worked && !events_.empty()) return publish();
  if (count <= 0) count = wait_for_events(lock, worked ? now : std::min(deadline, next_timer()), ready, 32);
  now = monotonic_now();
  if (stopping_) return;
  for (int i = 0; i < count; ++i) on_ready(now, ready[i].data.fd, ready[i].events);
  poll_rings();
  on_timers(now);
  publish();
}

void Loop::publish() {
  bool any = !events_.empty();
  for (; !events_.empty(); events_.pop_front()) {
    std::uint64_t token = events_.front().token;
    results_[token] = std::move(events_.front());
  }
  if (any && callers_ > 0) changed_.notify_all();
}

std::optional<Event> Loop::take(std::uint64_t token) {
  auto found = results_.find(token);
  if (found == results_.end()) return std::nullopt;
  Event event = std::move(found->second);
  results_.erase(found);
  return event;
}

Loop::Peer* Loop::find(std::uint32_t rank) {
  auto found = peers_.find(rank);
  return found == peers_.end() ? nullptr : found->second.get();
}

void Loop::refuse(std::uint32_t rank, std::uint64_t token, EventType type, std::uint64_t size, Failure failure) {
  Event event;
  event.type = type;
  event.rank = rank;
  event.token = token;
  event.size = size;
  event.failure = failure;
  results_[token] = std::move(event);
}

void Loop::connect(std::uint32_t rank, const std::string& host, std::uint16_t port) {
  Address address = parse_address(host, port);
  std::lock_guard lock(mutex_);
  if (stopping_) return;
  Time now = monotonic_now();
  if (Peer* old = find(rank)) fail(*old, Failure::local_close);
  auto& peer = peers_[rank] = std::make_unique<Peer>(rank, config_.credit, events_);
  peer->address = address;
  peer->deadline = now + config_.connect_timeout;
  peer->next_try = config_.rank < rank ? now : kNever;
  publish();
  wake();
}

std::uint64_t Loop::send(std::uint32_t rank, SendRequest request) {
  std::lock_guard lock(mutex_);
  std::uint64_t token = request.token = next_token_++;
  Peer* peer = find(rank);
  if (!peer || peer->state == Peer::State::failed || stopping_) {
    auto failure = stopping_ ? Failure::local_close : peer ? peer->failure : Failure::no_answer;
    refuse(rank, token, EventType::sent, request.size, failure);
    return token;
  }
  Time now = monotonic_now();
  peer->outbox.send(now, request);
  flush(now, *peer);
  publish();
  return token;
}

std::uint64_t Loop::receive(std::uint32_t rank, ReceiveRequest request) {
  std::lock_guard lock(mutex_);
  std::uint64_t token = request.token = next_token_++;
  Peer* peer = find(rank);
  bool open = peer && peer->state != Peer::State::failed && !stopping_;
  Time now = monotonic_now();
  if (!peer || !peer->inbox.post(now, request, open)) {
    auto failure = stopping_ ? Failure::local_close : peer ? peer->failure : Failure::no_answer;
    refuse(rank, token, EventType::received, request.size, failure);
    return token;
  }
  if (!peer->control.empty() || peer->inbox.owes_credit()) flush(now, *peer);
  publish();
  return token;
}

std::optional<Event> Loop::wait(std::uint64_t token, Time deadline) {
  std::unique_lock lock(mutex_);
  if (!results_.count(token)) drive_until(lock, deadline, [&] { return results_.count(token) > 0; });
  return take(token);
}

std::vector<std::uint64_t> Loop::wait_any(const std::vector<std::uint64_t>& tokens, Time deadline) {
  std::vector<std::uint64_t> done;
  std::unique_lock lock(mutex_);
  drive_until(lock, deadline, [&] {
    done.clear();
    for (std::uint64_t token : tokens)
      if (results_.count(token)) done.push_back(token);
    return !done.empty() || nudged_;
  });
  nudged_ = false;
  return done;
}

void Loop::nudge() {
  std::lock_guard lock(mutex_);
  nudged_ = true;
  changed_.notify_all();
  wake();
}

bool Loop::wait_connected(std::uint32_t rank, Time deadline, Failure& failure) {
  std::unique_lock lock(mutex_);
  auto state = [&] { return find(rank) ? find(rank)->state : Peer::State::failed; };
  drive_until(lock, deadline, [&] { return state() != Peer::State::waiting; });
  failure = find(rank) ? find(rank)->failure : Failure::no_answer;
  return state() == Peer::State::connected;
}

std::optional<Event> Loop::cancel(std::uint32_t rank, std::uint64_t token) {
  std::lock_guard lock(mutex_);
  Peer* peer = find(rank);
  if (peer) {
    std::optional<std::uint64_t> id = peer->outbox.id_of(token);
    if (id && peer->connection) peer->connection->detach(*id);
    if (peer->outbox.cancel(token) || peer->inbox.cancel(token)) flush(monotonic_now(), *peer);
    publish();
  }
  return take(token);
}

std::map<std::uint32_t, LinkStats> Loop::link_stats() {
  std::lock_guard lock(mutex_);
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

Counters Loop::counters() {
  std::lock_guard lock(mutex_);
  return counters_;
}

std::optional<std::string> Loop::stopped() {
  std::lock_guard lock(mutex_);
  return stopped_ ? std::optional(error_) : std::nullopt;
}

void Loop::close() {
  {
    std::lock_guard lock(mutex_);
    if (!stopping_) {
      stopping_ = true;
      for (auto& [rank, peer] : peers_) {
        if (peer->connection) {
          peer->control.push_back({FrameType::goodbye, 0, 0, 0, 0, 0});
          peer->connection->flush(monotonic_now());
        }
        fail(*peer, Failure::local_close);
      }
      pending_.clear();
      listener_.socket.reset();
      publish();
    }
    wake();
  }
  idle_.notify_all();
  changed_.notify_all();
  std::call_once(joined_, [this] { thread_.join(); });
}

}  // namespace gradwire::stream
