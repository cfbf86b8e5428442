#include "io/loop.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>

#include <cerrno>
#include <chrono>
#include <system_error>

namespace gradwire::io {
namespace {

// Asleep for longer, and what the last poll said of the socket is old: this process may have been paused.
constexpr ltp::Time kLookAnyway = 50 * ltp::kMillisecond;
// What is due while the socket is full cannot leave: room in it is waited for, and timers of others are no later than this.
constexpr ltp::Time kBlockedWait = ltp::kMillisecond;
// For goodbyes that a full socket holds up; who does not hear one waits for `dead_after`.
constexpr ltp::Time kGoodbyeTime = 200 * ltp::kMillisecond;
// How much older than its departure a packet's stamp may be: below the round trip of most local networks.
constexpr ltp::Time kStampAge = 100 * ltp::kMicrosecond;
// Runs that are sent before the socket is read again.
constexpr int kRunsBetweenReads = 64;

ltp::Secret entropy() {
  ltp::Secret bytes;
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw std::system_error(errno, std::generic_category(), "getrandom");
  return bytes;
}

Descriptor checked(int fd, const char* what) {
  if (fd < 0) throw std::system_error(errno, std::generic_category(), what);
  return Descriptor(fd);
}

}  // namespace

ltp::Time monotonic_now() {
  timespec time;
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return ltp::Time{time.tv_sec} * ltp::kSecond + time.tv_nsec;
}

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
  std::uint64_t one = 1;
  [[maybe_unused]] ssize_t written = ::write(event_.get(), &one, sizeof one);
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
  commands_.push_back([&](ltp::Time now) {
    command(now);
    std::lock_guard inner(mutex_);
    done = true;
    changed_.notify_all();
  });
  wake();
  changed_.wait(lock, [&] { return done || stopped_; });
}

void Loop::connect(std::uint32_t rank, const ltp::Address& address) {
  {
    std::lock_guard lock(mutex_);
    links_[rank] = {};
  }
  post_command([=, this](ltp::Time now) { endpoint_.connect(now, rank, address); });
}

std::uint64_t Loop::send(std::uint32_t rank, ltp::SendRequest request) {
  std::uint64_t token;
  {
    std::lock_guard lock(mutex_);
    token = request.token = next_token_++;
  }
  post_command([this, rank, request = std::move(request)](ltp::Time now) mutable { endpoint_.send(now, rank, std::move(request)); });
  return token;
}

std::uint64_t Loop::receive(std::uint32_t rank, ltp::ReceiveRequest request) {
  std::uint64_t token;
  {
    std::lock_guard lock(mutex_);
    token = request.token = next_token_++;
  }
  post_command([=, this](ltp::Time now) { endpoint_.post(now, rank, request); });
  return token;
}

namespace {

std::chrono::steady_clock::time_point clock_point(ltp::Time deadline) {
  // steady_clock is CLOCK_MONOTONIC here; a far deadline is cut so that the arithmetic inside the library holds.
  ltp::Time most = monotonic_now() + 3600 * ltp::kSecond;
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(std::min(deadline, most)));
}

}  // namespace

std::optional<ltp::Event> Loop::wait(std::uint64_t token, ltp::Time deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, clock_point(deadline), [&] { return results_.count(token) || stopped_; });
  auto found = results_.find(token);
  if (found == results_.end()) return std::nullopt;
  ltp::Event event = std::move(found->second);
  results_.erase(found);
  return event;
}

std::vector<std::uint64_t> Loop::wait_any(const std::vector<std::uint64_t>& tokens, ltp::Time deadline) {
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

bool Loop::wait_connected(std::uint32_t rank, ltp::Time deadline, ltp::Failure& failure) {
  std::unique_lock lock(mutex_);
  auto ready = [&] { return links_[rank].connected || links_[rank].failure != ltp::Failure::none || stopped_; };
  changed_.wait_until(lock, clock_point(deadline), ready);
  failure = links_[rank].failure;
  return links_[rank].connected && failure == ltp::Failure::none;
}

std::optional<ltp::Event> Loop::cancel(std::uint32_t rank, std::uint64_t token) {
  call([&](ltp::Time now) { endpoint_.cancel(now, rank, token); });
  std::lock_guard lock(mutex_);
  auto found = results_.find(token);
  if (found == results_.end()) return std::nullopt;
  ltp::Event event = std::move(found->second);
  results_.erase(found);
  return event;
}

Stats Loop::stats() {
  Stats stats;
  call([&](ltp::Time) {
    std::vector<std::uint32_t> ranks;
    {
      std::lock_guard lock(mutex_);
      for (auto& [rank, link] : links_) ranks.push_back(rank);
    }
    for (std::uint32_t rank : ranks)
      if (const ltp::Peer* peer = endpoint_.peer(rank); peer && peer->connection) stats.links[rank] = peer->connection->stats();
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

bool Loop::run_commands(ltp::Time now) {
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
  ltp::Event event;
  bool any = false;
  while (endpoint_.poll_event(event)) {
    std::lock_guard lock(mutex_);
    any = true;
    Link& link = links_[event.rank];
    if (event.type == ltp::EventType::connected) link.connected = true;
    else if (event.type == ltp::EventType::failed) link = {false, event.failure};
    else results_[event.token] = std::move(event);
  }
  if (any) changed_.notify_all();
}

// A packet's stamp is taken before it is sealed, and it leaves when its batch is flushed. 64 runs take 2 ms to seal on a
// loaded core; stamped by one reading of the clock, every round trip would look that much longer. So the clock is read for
// each run, and a batch is flushed before its first stamp is too old.
bool Loop::transmit() {
  if (socket_.pending() && !socket_.flush()) return false;
  // A bounded number of runs, so that reading is never starved by writing.
  ltp::Transmit run;
  for (int runs = 0; runs < kRunsBetweenReads;) {
    ltp::Time first = monotonic_now(), now = first;
    while (!socket_.full() && now - first < kStampAge && endpoint_.poll_transmit(now, socket_.room(), socket_.segments(), run)) {
      socket_.queue(run);
      ++runs;
      now = monotonic_now();
    }
    if (!socket_.pending()) return true;
    if (!socket_.flush()) return false;
  }
  return false;
}

// Everybody is told, however many they are and however full the socket is, within a time that a user who closes can wait.
void Loop::say_goodbye() {
  ltp::Time end = monotonic_now() + kGoodbyeTime;
  for (ltp::Time now = monotonic_now(); !transmit() && now < end; now = monotonic_now()) {
    pollfd room{socket_.fd(), POLLOUT, 0};
    if (socket_.pending()) ::poll(&room, 1, static_cast<int>((end - now) / ltp::kMillisecond));
  }
  publish();
}

bool Loop::fall_asleep() {
  std::lock_guard lock(mutex_);
  asleep_ = commands_.empty() && !stopping_;
  return asleep_;
}

// ppoll: two descriptors need no more, and it takes a deadline in nanoseconds without a call to set a timer.
bool Loop::sleep_until(ltp::Time deadline) {
  bool blocked = socket_.pending();
  if (blocked) deadline = std::max(deadline, monotonic_now() + kBlockedWait);
  ltp::Time wait = deadline == ltp::kNever ? 0 : deadline - monotonic_now();
  // Late already: looking at the socket costs no more than asking whether to.
  if (deadline != ltp::kNever && wait <= 0) return true;
  if (!fall_asleep()) return false;
  timespec limit{static_cast<time_t>(wait / ltp::kSecond), static_cast<long>(wait % ltp::kSecond)};
  pollfd watched[2] = {{socket_.fd(), static_cast<short>(POLLIN | (blocked ? POLLOUT : 0)), 0}, {event_.get(), POLLIN, 0}};
  ::ppoll(watched, 2, deadline == ltp::kNever ? nullptr : &limit, nullptr);
  {
    std::lock_guard lock(mutex_);
    asleep_ = false;
  }
  std::uint64_t drained;
  if (watched[1].revents) static_cast<void>(!::read(event_.get(), &drained, sizeof drained));
  return watched[0].revents & ~POLLOUT;
}

void Loop::run() {
  // The top of a thread: whatever is thrown below (memory, the system) ends the loop, and every waiter hears why.
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

// Reading comes before timers: after a pause of this process, what arrived meanwhile must be heard before a silent peer
// is declared dead.
void Loop::serve() {
  bool running = true, readable = true;
  ltp::Time looked = 0;
  while (running) {
    ltp::Time now = monotonic_now();
    running = run_commands(now);
    // The clock is read after a datagram is: where this thread waits for a core in between, an earlier reading would make
    // round trips shorter than the path, and with them the window, for as long as RTprop is remembered.
    auto take = [&](const ltp::Address& from, ltp::MutableBytes bytes) { endpoint_.handle_datagram(monotonic_now(), from, bytes); };
    if (now - looked > kLookAnyway) readable = true;
    if (readable) looked = now;
    for (int reads = 0; readable && reads < 4; ++reads) readable = socket_.receive(take);
    now = monotonic_now();
    if (endpoint_.poll_timeout(now) <= now) endpoint_.handle_timeout(now);
    transmit();
    publish();
    if (running && !readable) readable = sleep_until(endpoint_.poll_timeout(now));
  }
  say_goodbye();
}

std::optional<std::string> Loop::stopped() {
  std::lock_guard lock(mutex_);
  return stopped_ ? std::optional(error_) : std::nullopt;
}

}  // namespace gradwire::io
