// Loop: all streams of a process: listening, handshakes, sending, receiving, timers. A background thread runs it while
// no caller waits; a waiting caller runs it itself, so that its result wakes it directly and no other thread.
#pragma once
#include <sys/epoll.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

#include "core/address.h"
#include "core/descriptor.h"
#include "stream/connection.h"
#include "stream/greeting.h"
#include "stream/ring_channel.h"
#include "stream/tcp_channel.h"

namespace gradwire::stream {

struct LoopConfig {
  std::uint32_t rank = 0;
  std::uint64_t epoch = 0;  // differs between two processes of one rank
  std::vector<std::uint8_t> secret;
  bool local = false;  // shared memory with processes of this network namespace, instead of TCP
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  bool encrypt = true;
  std::uint32_t credit = 4u << 20;
  std::size_t ring = 1u << 20;
  Time spin = 20 * kMicrosecond;
  Time keepalive = kSecond, dead_after = 15 * kSecond, connect_timeout = 30 * kSecond;
};

struct Counters {
  std::uint64_t malformed = 0, authentication_failed = 0, refused = 0, accepted = 0, dropped = 0, wakes = 0;
};

class Loop {
 public:
  explicit Loop(LoopConfig config);
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  std::uint16_t port() const { return listener_.port; }
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
  std::map<std::uint32_t, LinkStats> link_stats();
  Counters counters();
  std::optional<std::string> stopped();
  // May be called again and from several threads: each call returns when the thread has ended.
  void close();

 private:
  // A connection whose HELLO was accepted and that has not received a valid frame yet. A peer may have several: only a
  // frame shows which of them it uses and which it has abandoned.
  struct Candidate {
    std::unique_ptr<Channel> channel;
    RingChannel* ring = nullptr;  // the channel, when it is one
    std::unique_ptr<Connection> connection;
    std::uint64_t epoch = 0;
    std::uint32_t credit = 0;
  };
  struct Peer {
    enum class State { waiting, connected, failed };
    Peer(std::uint32_t rank, std::uint64_t credit, std::deque<Event>& events)
        : number(rank), outbox(rank, events), inbox(rank, credit, events, control) {}
    std::uint32_t number;
    std::deque<Frame> control;
    Outbox outbox;
    Inbox inbox;
    State state = State::waiting;
    Failure failure = Failure::none, hint = Failure::no_answer;
    Address address;
    Time deadline = 0, next_try = 0;
    std::uint64_t epoch = 0;
    int pending = -1;  // the socket of a handshake in progress
    bool watching_writable = false;
    std::unique_ptr<Channel> channel;
    RingChannel* ring = nullptr;
    std::unique_ptr<Connection> connection;
    std::vector<Candidate> candidates;  // oldest first
  };
  // A socket that is not authenticated yet.
  struct PendingSocket {
    enum class Stage { connecting, connected, greeted };  // of an outgoing connection: HELLO is sent at the end
    Descriptor socket;
    Address from;                       // of an incoming connection; without its port
    std::optional<std::uint32_t> rank;  // of an outgoing connection
    Stage stage = Stage::connecting;
    Time deadline = 0;
    GreetingBytes bytes{};  // being read
    GreetingBytes sent{};   // the challenge of an incoming connection, or the HELLO of an outgoing one
    std::size_t got = 0;
    RingOffer offer;  // ours, or what arrived with the HELLO
  };

  // A connection that was refused or closed without an answer is tried again after this time: ranks do not start
  // together.
  static constexpr Time kRetry = 50 * kMillisecond;

  // The thread, and which thread runs the loop.
  void run();
  template <class Ready>
  bool drive_until(std::unique_lock<std::mutex>& lock, Time deadline, Ready ready);
  void drive(std::unique_lock<std::mutex>& lock, Time deadline, bool patient);
  int wait_for_events(std::unique_lock<std::mutex>& lock, Time deadline, epoll_event* ready, int most);
  // With the mutex held. Costs a system call only while a thread waits for events or is about to.
  void wake();
  void publish();
  std::optional<Event> take(std::uint64_t token);

  // Events.
  void on_ready(Time now, int fd, std::uint32_t events);
  void on_stream(Time now, Peer& peer);
  void on_candidate(Time now, Peer& peer, int fd, std::uint32_t events);
  void handle_status(Time now, Peer& peer, Connection::Status status);
  bool poll_rings();
  bool rings_ready();
  Time next_timer() const;
  void on_timers(Time now);
  void keep_alive(Time now, Peer& peer);

  // Sockets in the handshake (endpoint_handshake.cpp).
  void on_listener(Time now);
  void evict_oldest(const Address& from);
  bool on_pending(Time now, PendingSocket& pending);
  bool on_connected(PendingSocket& pending);
  bool on_challenge(PendingSocket& pending);
  void on_hello(Time now, PendingSocket& pending);
  void accept(Time now, PendingSocket& pending, Peer& peer, const Greeting& hello);
  void on_answer(Time now, PendingSocket& pending);
  std::optional<Candidate> make_candidate(Time now, Peer& peer, PendingSocket& pending,
                                          const std::optional<Protection>& protection, const Greeting& other);
  void drop_pending(int fd);

  // Peers (endpoint_peers.cpp).
  Peer* find(std::uint32_t rank);
  void start_connect(Time now, Peer& peer);
  void promote(Time now, Peer& peer, Candidate candidate);
  void drop_candidate(Peer& peer, int fd);
  void flush(Time now, Peer& peer);
  void disconnect(Peer& peer);
  void fail(Peer& peer, Failure failure);
  void refuse(std::uint32_t rank, std::uint64_t token, EventType type, std::uint64_t size, Failure failure);
  void watch(int fd, std::uint32_t events, bool added);

  LoopConfig config_;
  Greeter greeter_;
  Address own_address_;
  Listener listener_;
  Descriptor epoll_, event_;

  std::mutex mutex_;
  std::condition_variable changed_, idle_;
  bool driving_ = false, stopping_ = false, stopped_ = false, nudged_ = false;
  int callers_ = 0;
  Time last_caller_ = 0;
  std::string error_;
  std::uint64_t next_token_ = 1;
  std::deque<Event> events_;
  std::unordered_map<std::uint64_t, Event> results_;
  std::map<std::uint32_t, std::unique_ptr<Peer>> peers_;
  std::unordered_map<int, PendingSocket> pending_;
  std::unordered_map<int, std::uint32_t> streams_;  // socket -> rank
  Counters counters_;
  std::once_flag joined_;
  std::thread thread_;
};

}  // namespace gradwire::stream
