#include "stream/loop.h"

#include <sched.h>

#include <algorithm>
#include <chrono>

namespace gradwire::stream {
namespace {

// How long after the last waiting caller the thread takes over: between two waits of a caller it should not.
constexpr std::chrono::milliseconds kIdle{2};
constexpr Time kIdleTime = 2 * kMillisecond;

}  // namespace

Loop::Loop(LoopConfig config) : spin_(config.spin), local_(config.local), endpoint_(std::move(config), epoll_) {
  thread_ = std::thread([this] { run(); });
}

Loop::~Loop() { close(); }

void Loop::wake() {
  if (driving_) epoll_.signal();
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

int Loop::wait_for_events(std::unique_lock<std::mutex>& lock, Time deadline, std::span<epoll_event> ready) {
  endpoint_.set_asleep(true);
  Time left = endpoint_.rings_ready() || stopping_ ? 0 : deadline - monotonic_now();
  // Rounded up, or the last millisecond would be spent in a busy loop.
  int timeout = left <= 0 ? 0 : static_cast<int>(std::min<Time>((left + kMillisecond - 1) / kMillisecond, 3'600'000));
  lock.unlock();
  int count = epoll_.wait(ready, timeout);
  lock.lock();
  endpoint_.set_asleep(false);
  ++wakes_;
  return count;
}

void Loop::drive(std::unique_lock<std::mutex>& lock, Time deadline, bool patient) {
  Time now = monotonic_now();
  bool worked = endpoint_.handle_rings(monotonic_now);
  epoll_event ready[32];
  int count = 0;
  if (!worked && !patient) {
    // The answer of a process on another core arrives sooner than a sleeping thread wakes up. Yield, as others may need
    // this core.
    for (Time end = now + std::min(spin_, deadline - now);
         !worked && count <= 0 && !stopping_ && monotonic_now() < end;) {
      lock.unlock();
      ::sched_yield();
      if (!local_) count = epoll_.wait(ready, 0);
      lock.lock();
      worked = endpoint_.handle_rings(monotonic_now);
    }
  }
  if (worked && publish()) return;
  if (count <= 0) count = wait_for_events(lock, worked ? now : std::min(deadline, endpoint_.poll_timeout()), ready);
  now = monotonic_now();
  if (stopping_) return;
  for (int i = 0; i < count; ++i) {
    if (ready[i].data.fd == epoll_.bell())
      epoll_.drain();
    else
      endpoint_.handle_ready(now, ready[i].data.fd, ready[i].events);
  }
  endpoint_.handle_rings(monotonic_now);
  endpoint_.handle_timeout(now);
  publish();
}

bool Loop::publish() {
  bool any = false;
  for (Event event; endpoint_.poll_event(event); any = true) {
    // Others are changes of a peer's state, which waiting callers look at themselves.
    bool transfer = event.type == EventType::sent || event.type == EventType::received;
    if (transfer) results_[event.token] = std::move(event);
  }
  if (any && callers_ > 0) changed_.notify_all();
  return any;
}

std::optional<Event> Loop::take(std::uint64_t token) {
  auto found = results_.find(token);
  if (found == results_.end()) return std::nullopt;
  Event event = std::move(found->second);
  results_.erase(found);
  return event;
}

void Loop::connect(std::uint32_t rank, const std::string& host, std::uint16_t port) {
  Address address = parse_address(host, port);
  std::lock_guard lock(mutex_);
  endpoint_.connect(monotonic_now(), rank, address);
  publish();
  wake();
}

std::uint64_t Loop::send(std::uint32_t rank, SendRequest request) {
  std::lock_guard lock(mutex_);
  std::uint64_t token = request.token = next_token_++;
  endpoint_.send(monotonic_now(), rank, request);
  publish();
  return token;
}

std::uint64_t Loop::receive(std::uint32_t rank, ReceiveRequest request) {
  std::lock_guard lock(mutex_);
  std::uint64_t token = request.token = next_token_++;
  endpoint_.post(monotonic_now(), rank, request);
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
  auto state = [&] { return endpoint_.peer(rank) ? endpoint_.peer(rank)->state : Peer::State::failed; };
  drive_until(lock, deadline, [&] { return state() != Peer::State::waiting; });
  failure = endpoint_.peer(rank) ? endpoint_.peer(rank)->failure : Failure::no_answer;
  return state() == Peer::State::connected;
}

std::optional<Event> Loop::cancel(std::uint32_t rank, std::uint64_t token) {
  std::lock_guard lock(mutex_);
  endpoint_.cancel(monotonic_now(), rank, token);
  publish();
  return take(token);
}

void Loop::detach(std::uint32_t rank, std::uint64_t token) {
  std::lock_guard lock(mutex_);
  endpoint_.detach(rank, token);
}

std::map<std::uint32_t, LinkStats> Loop::link_stats() {
  std::lock_guard lock(mutex_);
  return endpoint_.link_stats();
}

Counters Loop::counters() {
  std::lock_guard lock(mutex_);
  return {endpoint_.counters(), wakes_};
}

std::optional<std::string> Loop::stopped() {
  std::lock_guard lock(mutex_);
  return stopped_ ? std::optional(error_) : std::nullopt;
}

void Loop::close() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    endpoint_.shut(monotonic_now());
    publish();
    wake();
  }
  idle_.notify_all();
  changed_.notify_all();
  std::call_once(joined_, [this] { thread_.join(); });
}

}  // namespace gradwire::stream
