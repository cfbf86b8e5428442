#include "ltp_io/loop.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>

#include "core/random.h"

namespace gradwire::ltp_io {
namespace {

// After a longer sleep the result of the last poll is stale: this process may have been paused.
constexpr Time kReadAnyway = 50 * kMillisecond;
// While the socket is full nothing can be sent: wait until it is writable, and delay other timers by no more than this.
constexpr Time kBlockedWait = kMillisecond;
// For SHUT packets while the socket is full; a peer that gets none waits for `dead_after`.
constexpr Time kShutTime = 200 * kMillisecond;
// How old the time stamp of a packet may be when it is sent: below the round trip of most local networks.
constexpr Time kStampAge = 100 * kMicrosecond;
// Runs of datagrams sent before the socket is read again.
constexpr int kRunsBetweenReads = 64;

HeldSecret entropy() {
  HeldSecret bytes;
  fill_random(bytes);
  return bytes;
}

}  // namespace

Loop::Loop(LoopConfig config)
    : config_(std::move(config)),
      socket_(config_.host, config_.port, config_.socket_buffer),
      endpoint_(config_.settings, config_.self, config_.secret, entropy()),
      event_(checked(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd")) {
  thread_ = std::thread([this] { run(); });
}

Loop::~Loop() { close(); }

void Loop::wake() {
  if (!std::exchange(asleep_, false)) return;
  ++wakes_;
  signal(event_);
}

void Loop::post_command(Command command) {
  std::lock_guard lock(mutex_);
  commands_.push_back(std::move(command));
  wake();
}

void Loop::call(const Command& command) {
  bool done = false;
  std::unique_lock lock(mutex_);
  if (stopped_) return;
  commands_.push_back([&](Time now) {
    command(now);
    std::lock_guard inner(mutex_);
    done = true;
    changed_.notify_all();
  });
  wake();
  changed_.wait(lock, [&] { return done || stopped_; });
}

void Loop::connect(std::uint32_t rank, const Address& address) {
  {
    std::lock_guard lock(mutex_);
    links_[rank] = {};
  }
  post_command([=, this](Time now) { endpoint_.connect(now, rank, address); });
}

std::uint64_t Loop::send(std::uint32_t rank, SendRequest request) {
  std::uint64_t token;
  {
    std::lock_guard lock(mutex_);
    token = request.token = next_token_++;
  }
  post_command(
      [this, rank, request = std::move(request)](Time now) mutable { endpoint_.send(now, rank, std::move(request)); });
  return token;
}

std::uint64_t Loop::receive(std::uint32_t rank, ReceiveRequest request) {
  std::uint64_t token;
  {
    std::lock_guard lock(mutex_);
    token = request.token = next_token_++;
  }
  post_command([=, this](Time now) { endpoint_.post(now, rank, request); });
  return token;
}

std::optional<Event> Loop::wait(std::uint64_t token, Time deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, clock_point(deadline), [&] { return results_.count(token) || stopped_; });
  auto found = results_.find(token);
  if (found == results_.end()) return std::nullopt;
  Event event = std::move(found->second);
  results_.erase(found);
  return event;
}

std::vector<std::uint64_t> Loop::wait_any(const std::vector<std::uint64_t>& tokens, Time deadline) {
  std::vector<std::uint64_t> done;
  auto collect = [&] {
    for (std::uint64_t token : tokens)
      if (results_.count(token)) done.push_back(token);
    return !done.empty() || nudged_ || stopped_;
  };
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, clock_point(deadline), collect);
  nudged_ = false;
  return done;
}

void Loop::nudge() {
  std::lock_guard lock(mutex_);
  nudged_ = true;
  changed_.notify_all();
}

bool Loop::wait_connected(std::uint32_t rank, Time deadline, Failure& failure) {
  std::unique_lock lock(mutex_);
  auto ready = [&] { return links_[rank].connected || links_[rank].failure != Failure::none || stopped_; };
  changed_.wait_until(lock, clock_point(deadline), ready);
  failure = links_[rank].failure;
  return links_[rank].connected && failure == Failure::none;
}

std::optional<Event> Loop::cancel(std::uint32_t rank, std::uint64_t token) {
  call([&](Time now) { endpoint_.cancel(now, rank, token); });
  std::lock_guard lock(mutex_);
  auto found = results_.find(token);
  if (found == results_.end()) return std::nullopt;
  Event event = std::move(found->second);
  results_.erase(found);
  return event;
}

void Loop::detach(std::uint32_t rank, std::uint64_t token) {
  call([&](Time) { endpoint_.detach(rank, token); });
}

Stats Loop::stats() {
  Stats stats;
  call([&](Time) {
    std::vector<std::uint32_t> ranks;
    {
      std::lock_guard lock(mutex_);
      for (auto& [rank, link] : links_) ranks.push_back(rank);
    }
    for (std::uint32_t rank : ranks)
      if (const ltp::Peer* peer = endpoint_.peer(rank); peer && peer->connection)
        stats.links[rank] = peer->connection->stats();
    stats.endpoint = endpoint_.counters();
    stats.socket = socket_.stats();
    std::lock_guard lock(mutex_);
    stats.wakes = wakes_;
  });
  return stats;
}

void Loop::close() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    wake();
  }
  std::call_once(joined_, [this] { thread_.join(); });
}

bool Loop::run_commands(Time now) {
  std::unique_lock lock(mutex_);
  bool stopping = stopping_;
  if (commands_.empty() && !stopping) return true;
  std::deque<Command> commands;
  commands.swap(commands_);
  lock.unlock();
  for (Command& command : commands) command(now);
  if (stopping) endpoint_.shut();
  return !stopping;
}

void Loop::publish() {
  Event event;
  bool any = false;
  while (endpoint_.poll_event(event)) {
    std::lock_guard lock(mutex_);
    any = true;
    Link& link = links_[event.rank];
    if (event.type == EventType::connected)
      link.connected = true;
    else if (event.type == EventType::failed)
      link = {false, event.failure};
    else
      results_[event.token] = std::move(event);
  }
  if (any) changed_.notify_all();
}

// The time stamp of a packet is taken before it is sealed, and the packet is sent when its batch is flushed. Sealing 64
// runs takes 2 ms on a loaded core; with one clock reading for all, every round trip would appear that much longer. So
// the clock is read for each run, and a batch is flushed before its first stamp is too old.
bool Loop::transmit() {
  if (socket_.pending() && !socket_.flush()) return false;
  // A bounded number of runs, so that writing never starves reading.
  ltp::Transmit run;
  for (int runs = 0; runs < kRunsBetweenReads;) {
    Time first = monotonic_now(), now = first;
    while (!socket_.full() && now - first < kStampAge &&
           endpoint_.poll_transmit(now, socket_.room(), socket_.segments(), run)) {
      socket_.queue(run);
      ++runs;
      now = monotonic_now();
    }
    if (!socket_.pending()) return true;
    if (!socket_.flush()) return false;
  }
  return false;
}

// Sends SHUT to every peer, also while the socket is full, within a time that is acceptable for close().
void Loop::send_shut() {
  Time end = monotonic_now() + kShutTime;
  for (Time now = monotonic_now(); !transmit() && now < end; now = monotonic_now()) {
    pollfd room{socket_.fd(), POLLOUT, 0};
    if (socket_.pending()) ::poll(&room, 1, static_cast<int>((end - now) / kMillisecond));
  }
  publish();
}

bool Loop::prepare_sleep() {
  std::lock_guard lock(mutex_);
  asleep_ = commands_.empty() && !stopping_;
  return asleep_;
}

// ppoll is enough for two descriptors, and takes a timeout in nanoseconds without a call to set a timer.
bool Loop::sleep_until(Time deadline) {
  bool blocked = socket_.pending();
  if (blocked) deadline = std::max(deadline, monotonic_now() + kBlockedWait);
  Time wait = deadline == kNever ? 0 : deadline - monotonic_now();
  // Late already: reading the socket costs no more than polling it.
  if (deadline != kNever && wait <= 0) return true;
  if (!prepare_sleep()) return false;
  timespec limit{static_cast<time_t>(wait / kSecond), static_cast<long>(wait % kSecond)};
  pollfd watched[2] = {{socket_.fd(), static_cast<short>(POLLIN | (blocked ? POLLOUT : 0)), 0},
                       {event_.get(), POLLIN, 0}};
  ::ppoll(watched, 2, deadline == kNever ? nullptr : &limit, nullptr);
  {
    std::lock_guard lock(mutex_);
    asleep_ = false;
  }
  std::uint64_t drained;
  if (watched[1].revents) static_cast<void>(!::read(event_.get(), &drained, sizeof drained));
  return watched[0].revents & ~POLLOUT;
}

void Loop::run() {
  // The top of a thread: an exception (memory, system calls) ends the loop, and every waiter gets its text.
  std::string error;
  try {
    serve();
  } catch (const std::exception& caught) {
    error = caught.what();
  }
  std::lock_guard lock(mutex_);
  error_ = error;
  stopped_ = true;
  changed_.notify_all();
}

// Reading comes before timers: after a pause of this process, packets that have arrived must be handled before a silent
// peer is declared dead.
void Loop::serve() {
  bool running = true, readable = true;
  Time last_read = 0;
  while (running) {
    Time now = monotonic_now();
    running = run_commands(now);
    // The clock is read after the datagram: if this thread waits for a core in between, an earlier reading would make
    // round trips shorter than the path, and so the window too small, for as long as RTprop is kept.
    auto take = [&](const Address& from, MutableBytes bytes) {
      endpoint_.handle_datagram(monotonic_now(), from, bytes);
    };
    if (now - last_read > kReadAnyway) readable = true;
    if (readable) last_read = now;
    for (int reads = 0; readable && reads < 4; ++reads) readable = socket_.receive(take);
    now = monotonic_now();
    if (endpoint_.poll_timeout(now) <= now) endpoint_.handle_timeout(now);
    transmit();
    publish();
    if (running && !readable) readable = sleep_until(endpoint_.poll_timeout(now));
  }
  send_shut();
}

std::optional<std::string> Loop::stopped() {
  std::lock_guard lock(mutex_);
  return stopped_ ? std::optional(error_) : std::nullopt;
}

}  // namespace gradwire::ltp_io
