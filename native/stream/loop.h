// Loop: the streams' driver: waits for the descriptors and timers of an Endpoint and returns results to waiting
// callers. A background thread runs it while no caller waits; a waiting caller runs it itself, so that its result wakes
// it directly and no other thread.
#pragma once
#include <condition_variable>
#include <mutex>
#include <thread>

#include "stream/endpoint.h"
#include "stream/epoll.h"

namespace gradwire::stream {

struct LoopConfig : EndpointConfig {
  Time spin = 20 * kMicrosecond;
};

struct Counters : EndpointCounters {
  std::uint64_t wakes = 0;
};

class Loop {
 public:
  explicit Loop(LoopConfig config);
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  std::uint16_t port() const { return endpoint_.port(); }
  void connect(std::uint32_t rank, const std::string& host, std::uint16_t port);
  // Both return a token; `data` stays alive until wait() or cancel() has returned its result.
  std::uint64_t send(std::uint32_t rank, SendRequest request);
  std::uint64_t receive(std::uint32_t rank, ReceiveRequest request);
  std::optional<Event> wait(std::uint64_t token, Time deadline);
  // Those of `tokens` that have a result, which is left for wait(); empty at the deadline, after nudge() and when
  // stopped.
  std::vector<std::uint64_t> wait_any(const std::vector<std::uint64_t>& tokens, Time deadline);
  // Makes the present or the next wait_any() return.
  void nudge();
  bool wait_connected(std::uint32_t rank, Time deadline, Failure& failure);
  std::optional<Event> cancel(std::uint32_t rank, std::uint64_t token);
  // The buffer of this send is not read after it returns; the transfer continues from a copy.
  void detach(std::uint32_t rank, std::uint64_t token);
  std::map<std::uint32_t, LinkStats> link_stats();
  Counters counters();
  std::optional<std::string> stopped();
  // May be called again and from several threads: each call returns when the thread has ended.
  void close();

 private:
  // The thread, and which thread runs the loop.
  void run();
  template <class Ready>
  bool drive_until(std::unique_lock<std::mutex>& lock, Time deadline, Ready ready);
  void drive(std::unique_lock<std::mutex>& lock, Time deadline, bool patient);
  int wait_for_events(std::unique_lock<std::mutex>& lock, Time deadline, std::span<epoll_event> ready);
  // With the mutex held. Costs a system call only while a thread waits for events or is about to.
  void wake();
  // Makes the endpoint's events visible to waiting callers; false when there was none.
  bool publish();
  std::optional<Event> take(std::uint64_t token);

  Time spin_;
  bool local_;
  Epoll epoll_;

  std::mutex mutex_;
  Endpoint endpoint_;  // used with the mutex held, except port(), which never changes
  std::condition_variable changed_, idle_;
  bool driving_ = false, stopping_ = false, stopped_ = false, nudged_ = false;
  int callers_ = 0;
  Time last_caller_ = 0;
  std::uint64_t wakes_ = 0;
  std::string error_;
  std::uint64_t next_token_ = 1;
  std::unordered_map<std::uint64_t, Event> results_;
  std::once_flag joined_;
  std::thread thread_;
};

}  // namespace gradwire::stream
