// All streams of a process: listens, greets, moves bytes, keeps time. A thread of its own does so while nobody waits; a
// caller that waits does it itself instead, so that what it waits for wakes it directly and no other thread.
#pragma once
#include <sys/epoll.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

#include "io/descriptor.h"
#include "ltp/address.h"
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
  ltp::Time spin = 20 * ltp::kMicrosecond;
  ltp::Time keepalive = ltp::kSecond, dead_after = 15 * ltp::kSecond, connect_timeout = 30 * ltp::kSecond;
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
  // Both give a token; `data` stays alive until wait() or cancel() has spoken of it.
  std::uint64_t send(std::uint32_t rank, ltp::SendRequest request);
  std::uint64_t receive(std::uint32_t rank, ltp::ReceiveRequest request);
  std::optional<ltp::Event> wait(std::uint64_t token, ltp::Time deadline);
  // Those of `tokens` whose results are there, left for wait(); empty at the deadline, after nudge() and when stopped.
  std::vector<std::uint64_t> wait_any(const std::vector<std::uint64_t>& tokens, ltp::Time deadline);
  // Makes the present or the next wait_any() return.
  void nudge();
  bool wait_connected(std::uint32_t rank, ltp::Time deadline, ltp::Failure& failure);
  std::optional<ltp::Event> cancel(std::uint32_t rank, std::uint64_t token);
  std::map<std::uint32_t, ltp::LinkStats> link_stats();
  Counters counters();
  std::optional<std::string> stopped();
  // May be called again and from several threads: each call returns when the thread is gone.
  void close();

 private:
  // A caller whose HELLO was accepted and who has not written a valid frame yet. A peer may have several: which of them is
  // the peer, and which a connection that it has given up, only a frame shows.
  struct Candidate {
    std::unique_ptr<Channel> channel;
    RingChannel* ring = nullptr;  // the channel, when it is one
    std::unique_ptr<Connection> connection;
    std::uint64_t epoch = 0;
    std::uint32_t credit = 0;
  };
  struct Peer {
    enum class State { waiting, connected, failed };
    Peer(std::uint32_t rank, std::uint64_t credit, std::deque<ltp::Event>& events)
        : number(rank), outbox(rank, events), inbox(rank, credit, events, control) {}
    std::uint32_t number;
    std::deque<Frame> control;
    Outbox outbox;
    Inbox inbox;
    State state = State::waiting;
    ltp::Failure failure = ltp::Failure::none, hint = ltp::Failure::no_answer;
    ltp::Address address;
    ltp::Time deadline = 0, next_try = 0;
    std::uint64_t epoch = 0;
    int guest = -1;  // the socket of a greeting under way
    bool watching_room = false;
    std::unique_ptr<Channel> channel;
    RingChannel* ring = nullptr;
    std::unique_ptr<Connection> connection;
    std::vector<Candidate> candidates;  // oldest first
  };
  // A socket that has not proved anything yet.
  struct Guest {
    enum class Stage { connecting, connected, greeted };  // of a call: HELLO is sent at the end
    io::Descriptor socket;
    ltp::Address from;                  // of a stranger; without its port
    std::optional<std::uint32_t> rank;  // whom we called
    Stage stage = Stage::connecting;
    ltp::Time deadline = 0;
    GreetingBytes bytes{};  // what is being read
    GreetingBytes sent{};   // a stranger's challenge, or the HELLO of a call
    std::size_t got = 0;
    RingOffer offer;  // ours, or what came with the HELLO
  };

  // A call that was refused or ended without an answer is repeated after this time: ranks start one after the other.
  static constexpr ltp::Time kRetry = 50 * ltp::kMillisecond;

  // The thread, and the turn of who works.
  void run();
  template <class Ready>
  bool drive_until(std::unique_lock<std::mutex>& lock, ltp::Time deadline, Ready ready);
  void drive(std::unique_lock<std::mutex>& lock, ltp::Time deadline, bool patient);
  int sleep(std::unique_lock<std::mutex>& lock, ltp::Time deadline, epoll_event* ready, int most);
  // With the mutex held. Costs a system call only when somebody sleeps at the sockets or is about to.
  void wake();
  void publish();
  std::optional<ltp::Event> take(std::uint64_t token);

  // Events.
  void on_ready(ltp::Time now, int fd, std::uint32_t events);
  void on_stream(ltp::Time now, Peer& peer);
  void on_candidate(ltp::Time now, Peer& peer, int fd, std::uint32_t events);
  void conclude(ltp::Time now, Peer& peer, Connection::Status status);
  bool poll_rings();
  bool rings_ready();
  ltp::Time next_timer() const;
  void on_timers(ltp::Time now);
  void keep_alive(ltp::Time now, Peer& peer);

  // Guests (loop_guests.cpp).
  void on_listener(ltp::Time now);
  void make_room(const ltp::Address& from);
  bool on_guest(ltp::Time now, Guest& guest);
  bool on_connected(Guest& guest);
  bool on_challenge(Guest& guest);
  void on_hello(ltp::Time now, Guest& guest);
  void accept(ltp::Time now, Guest& guest, Peer& peer, const Greeting& hello);
  void on_answer(ltp::Time now, Guest& guest);
  std::optional<Candidate> agreed(ltp::Time now, Peer& peer, Guest& guest, const std::optional<Protection>& protection, const Greeting& other);
  void drop_guest(int fd);

  // Peers.
  Peer* find(std::uint32_t rank);
  void call(ltp::Time now, Peer& peer);
  void adopt(ltp::Time now, Peer& peer, Candidate candidate);
  void drop_candidate(Peer& peer, int fd);
  void flush(ltp::Time now, Peer& peer);
  void hang_up(Peer& peer);
  void fail(Peer& peer, ltp::Failure failure);
  void refuse(std::uint32_t rank, std::uint64_t token, ltp::EventType type, std::uint64_t size, ltp::Failure failure);
  void watch(int fd, std::uint32_t events, bool added);

  LoopConfig config_;
  Greeter greeter_;
  ltp::Address own_address_;
  Listener listener_;
  io::Descriptor epoll_, event_;

  std::mutex mutex_;
  std::condition_variable changed_, idle_;
  bool driving_ = false, stopping_ = false, stopped_ = false, nudged_ = false;
  int callers_ = 0;
  ltp::Time last_caller_ = 0;
  std::string error_;
  std::uint64_t next_token_ = 1;
  std::deque<ltp::Event> events_;
  std::unordered_map<std::uint64_t, ltp::Event> results_;
  std::map<std::uint32_t, std::unique_ptr<Peer>> peers_;
  std::unordered_map<int, Guest> guests_;
  std::unordered_map<int, std::uint32_t> streams_;  // socket -> rank
  Counters counters_;
  std::once_flag joined_;
  std::thread thread_;
};

}  // namespace gradwire::stream
