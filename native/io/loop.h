// The one event loop thread of a process: owns the socket and the protocol endpoint, takes commands through a locked
// queue, and hands results to whoever waits for them. Nothing here calls back into another language.
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

#include "io/udp_socket.h"
#include "ltp/endpoint.h"

namespace gradwire::io {

struct LoopConfig {
  ltp::Settings settings;
  ltp::Identity self;
  std::vector<std::uint8_t> secret;
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  // Two bandwidth-delay products of 1 Gbit/s at 30 ms; the kernel may give less.
  std::size_t socket_buffer = 8u << 20;
};

ltp::Time monotonic_now();

struct Stats {
  std::map<std::uint32_t, ltp::LinkStats> links;
  ltp::EndpointCounters endpoint;
  SocketStats socket;
  std::uint64_t wakes = 0;  // times that a command had to wake the thread
};

class Loop {
 public:
  explicit Loop(LoopConfig config);
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  std::uint16_t port() const { return socket_.port(); }

  void connect(std::uint32_t rank, const ltp::Address& address);
  // Both give a token; `data` stays alive until wait() or cancel() has spoken of it.
  std::uint64_t send(std::uint32_t rank, ltp::SendRequest request);
  std::uint64_t receive(std::uint32_t rank, ltp::ReceiveRequest request);
  // The result of a transfer, taken away; nothing when it is not there by the deadline.
  std::optional<ltp::Event> wait(std::uint64_t token, ltp::Time deadline);
  // Those of `tokens` whose results are there, left for wait(); empty at the deadline, after nudge() and when stopped.
  std::vector<std::uint64_t> wait_any(const std::vector<std::uint64_t>& tokens, ltp::Time deadline);
  // Makes the present or the next wait_any() return.
  void nudge();
  // True once `rank` is connected; false at the deadline. A failure is in `failure`.
  bool wait_connected(std::uint32_t rank, ltp::Time deadline, ltp::Failure& failure);
  // Returns when the loop has let go of the buffer. The result, should the transfer have finished before.
  std::optional<ltp::Event> cancel(std::uint32_t rank, std::uint64_t token);
  Stats stats();
  // Nothing while the loop runs; after that the error that ended it, empty when it was closed.
  std::optional<std::string> stopped();
  // Says goodbye, stops the thread, fails what is pending. May be called again and from several threads: each call
  // returns when the thread is gone.
  void close();

 private:
  using Command = std::function<void(ltp::Time)>;

  void post_command(Command command);
  // Runs the command on the loop and waits for it.
  void call(const Command& command);
  void run();
  void serve();
  bool run_commands(ltp::Time now);
  // True when nothing is left to send now.
  bool transmit();
  void say_goodbye();
  void publish();
  // True when there may be something to read.
  bool sleep_until(ltp::Time deadline);
  // False when there is something to do first.
  bool fall_asleep();
  // With the mutex held. Costs a system call only when the thread sleeps or is about to.
  void wake();

  LoopConfig config_;
  UdpSocket socket_;
  ltp::Endpoint endpoint_;  // touched by the loop's thread only
  Descriptor event_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Command> commands_;
  std::unordered_map<std::uint64_t, ltp::Event> results_;
  struct Link {
    bool connected = false;
    ltp::Failure failure = ltp::Failure::none;
  };
  std::map<std::uint32_t, Link> links_;
  std::uint64_t next_token_ = 1;
  bool stopping_ = false, stopped_ = false, nudged_ = false, asleep_ = false;
  std::uint64_t wakes_ = 0;
  std::string error_;
  std::once_flag joined_;
  std::thread thread_;
};

}  // namespace gradwire::io
