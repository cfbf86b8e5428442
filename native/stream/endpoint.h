// Endpoint: all streams of one process: listening, handshakes, sending, receiving, timers. Ready descriptors and time
// in, events out. It reads and writes sockets and rings but never waits: no thread, no lock, no clock. What waits is
// the driver (loop.h). The lower rank of each pair connects, so there is never more than one connection between two
// processes.
// Call order: after any input (connect, send, post, cancel, handle_*), poll_event until false, then poll_timeout; call
// handle_timeout at that time, after the handle_ready and handle_rings of what arrived before: a process that was
// paused must read what its peers sent before it declares them dead.
#pragma once
#include <map>
#include <string>
#include <unordered_map>

#include "stream/peer.h"
#include "stream/pending_socket.h"
#include "stream/poller.h"
#include "stream/tcp_channel.h"

namespace gradwire::stream {

struct EndpointConfig {
  std::uint32_t rank = 0;
  std::uint64_t epoch = 0;  // differs between two processes of one rank
  std::vector<std::uint8_t> secret;
  bool local = false;  // shared memory with processes of this network namespace, instead of TCP
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  bool encrypt = true;
  std::uint32_t credit = 4u << 20;
  std::size_t ring = 1u << 20;
  Time keepalive = kSecond, dead_after = 15 * kSecond, connect_timeout = 30 * kSecond;
};

struct EndpointCounters {
  std::uint64_t malformed = 0, authentication_failed = 0, refused = 0, accepted = 0, dropped = 0, wrong_version = 0;
};

class Endpoint {
 public:
  using Clock = Time (*)();

  // Listens at once. `poller` outlives the endpoint.
  Endpoint(EndpointConfig config, Poller& poller);
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  std::uint16_t port() const { return listener_.port; }

  // Starts (or restarts after a failure) a connection; the result is an event.
  void connect(Time now, std::uint32_t rank, const Address& address);
  // The result is an event with the request's token; `data` stays alive until then or until cancel().
  void send(Time now, std::uint32_t rank, const SendRequest& request);
  void post(Time now, std::uint32_t rank, const ReceiveRequest& request);
  // The buffer is not used after this call. False: the transfer is unknown, or had finished before.
  bool cancel(Time now, std::uint32_t rank, std::uint64_t token);
  // After it returns the buffer of this send is not read; the transfer continues from a copy.
  void detach(std::uint32_t rank, std::uint64_t token);
  // Informs every peer, closes all sockets and fails what is pending; later requests fail too.
  void shut(Time now);

  void handle_ready(Time now, int fd, std::uint32_t events);
  // Serves rings that can be read, or written after they were full; false when there was none. The clock is read for
  // each: while others were served, a peer may have answered what was just sent to it.
  bool handle_rings(Clock now);
  void handle_timeout(Time now);
  Time poll_timeout() const;
  bool poll_event(Event& event);

  // While asleep, the other ends of rings signal the poller's bell; otherwise handle_rings must be called repeatedly.
  // After marking, check rings_ready() once more before sleeping.
  void set_asleep(bool asleep);
  bool rings_ready() const;

  const Peer* peer(std::uint32_t rank) const;
  std::map<std::uint32_t, LinkStats> link_stats();
  const EndpointCounters& counters() const { return counters_; }

 private:
  void refuse(std::uint32_t rank, std::uint64_t token, EventType type, std::uint64_t size, const Peer* peer);
  void report(EventType type, const Peer& peer);

  // Peers (endpoint_peers.cpp).
  Peer* find(std::uint32_t rank);
  void on_stream(Time now, Peer& peer);
  void on_candidate(Time now, Peer& peer, int fd, std::uint32_t events);
  void handle_status(Time now, Peer& peer, Connection::Status status);
  void keep_alive(Time now, Peer& peer);
  void promote(Time now, Peer& peer, Candidate candidate);
  void drop_candidate(Peer& peer, int fd);
  void flush(Time now, Peer& peer);
  void disconnect(Peer& peer);
  void fail(Peer& peer, Failure failure);

  // Sockets in the handshake (endpoint_pending.cpp), and its messages (endpoint_handshake.cpp).
  void start_connect(Time now, Peer& peer);
  void on_listener(Time now);
  void evict_oldest(Time now, const Address& from);
  void drop_pending(Time now, int fd);
  bool on_pending(Time now, PendingSocket& pending);
  bool send_challenge(PendingSocket& pending);
  bool on_connected(PendingSocket& pending);
  bool on_challenge(PendingSocket& pending);
  void on_other_version(PendingSocket& pending, std::uint32_t rank);
  Greeting own_greeting(Greeting::Kind kind, std::uint32_t peer_rank) const;
  void on_hello(Time now, PendingSocket& pending);
  void accept(Time now, PendingSocket& pending, Peer& peer, const Greeting& hello);
  void on_answer(Time now, PendingSocket& pending);
  std::optional<Candidate> make_candidate(Time now, Peer& peer, PendingSocket& pending,
                                          const std::optional<Protection>& protection, const Greeting& other);

  EndpointConfig config_;
  Poller& poller_;
  Greeter greeter_;
  Address own_address_;
  Listener listener_;
  EndpointCounters counters_;
  bool shut_ = false;
  std::deque<Event> events_;
  std::map<std::uint32_t, std::unique_ptr<Peer>> peers_;
  std::unordered_map<int, PendingSocket> pending_;
  std::unordered_map<int, std::uint32_t> streams_;  // socket -> rank
};

}  // namespace gradwire::stream
