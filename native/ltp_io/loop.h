// Loop: LTP's driver: one thread per process that owns the socket and the endpoint, takes commands through a locked
// queue and returns results to waiting callers. It never calls back into Python.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "ltp/endpoint.h"
#include "ltp_io/udp_socket.h"

namespace gradwire::ltp_io {

struct LoopConfig {
  ltp::Settings settings;
  ltp::Identity self;
  std::vector<std::uint8_t> secret;
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  // Two bandwidth-delay products of 1 Gbit/s at 30 ms; the kernel may give less.
  std::size_t socket_buffer = 8u << 20;
};

struct Stats {
  std::map<std::uint32_t, LinkStats> links;
  ltp::EndpointCounters endpoint;
  SocketStats socket;
  std::uint64_t wakes = 0;  // how often a command had to wake the thread
};

class Loop {
 public:
  explicit Loop(LoopConfig config);
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  std::uint16_t port() const { return socket_.port(); }

  void connect(std::uint32_t rank, const Address& address);
  // Both return a token; `data` stays alive until wait() or cancel() has returned its result.
  std::uint64_t send(std::uint32_t rank, SendRequest request);
  std::uint64_t receive(std::uint32_t rank, ReceiveRequest request);
  // Takes the result of a transfer; none when there is none by the deadline.
  std::optional<Event> wait(std::uint64_t token, Time deadline);
  // Those of `tokens` that have a result, which is left for wait(); empty at the deadline, after nudge() and when
  // stopped.
  std::vector<std::uint64_t> wait_any(const std::vector<std::uint64_t>& tokens, Time deadline);
  // Makes the present or the next wait_any() return.
  void nudge();
  // True once `rank` is connected; false at the deadline or after a failure, which is in `failure`.
  bool wait_connected(std::uint32_t rank, Time deadline, Failure& failure);
  // Returns when the loop no longer uses the buffer. The result, if the transfer had finished before.
  std::optional<Event> cancel(std::uint32_t rank, std::uint64_t token);
  // Returns when the loop no longer reads the buffer of this send; the transfer continues from a copy.
  void detach(std::uint32_t rank, std::uint64_t token);
  Stats stats();
  // None while the loop runs; then the error that ended it, empty when it was closed.
  std::optional<std::string> stopped();
  // Closes the connections, stops the thread, fails what is pending. May be called again and from several threads: each
  // call returns when the thread has ended.
  void close();

 private:
  using Command = std::function<void(Time)>;

  void post_command(Command command);
  // Runs the command on the loop and waits for it.
  void call(const Command& command);
  void run();
  void serve();
  bool run_commands(Time now);
  // True when nothing is left to send now.
  bool transmit();
  void send_shut();
  void publish();
  // True when there may be something to read.
  bool sleep_until(Time deadline);
  // False when there is something to do first.
  bool prepare_sleep();
  // With the mutex held. Costs a system call only while the thread sleeps or is about to.
  void wake();

  LoopConfig config_;
  UdpSocket socket_;
  ltp::Endpoint endpoint_;  // used by the loop's thread only
  Descriptor event_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Command> commands_;
  std::unordered_map<std::uint64_t, Event> results_;
  struct Link {
    bool connected = false;
    Failure failure = Failure::none;
  };
  std::map<std::uint32_t, Link> links_;
  std::uint64_t next_token_ = 1;
  bool stopping_ = false, stopped_ = false, nudged_ = false, asleep_ = false;
  std::uint64_t wakes_ = 0;
  std::string error_;
  std::once_flag joined_;
  std::thread thread_;
};

}  // namespace gradwire::ltp_io
