// Endpoint: one process in LTP: all peers behind one socket. Datagrams and time in, datagrams and events out; no I/O.
// The lower rank of each pair initiates, so there is never more than one connection between two processes.
// Call order as in connection.h: after any input, poll_transmit until false, poll_event until false, then poll_timeout.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "ltp/answers.h"
#include "ltp/endpoint_counters.h"
#include "ltp/peer.h"

namespace gradwire::ltp {

// A run of datagrams for one destination: all `segment` bytes long except perhaps the last (UDP_SEGMENT's shape).
struct Transmit {
  Address to;
  std::size_t segment = 0;
  std::size_t size = 0;
};

struct Identity {
  std::uint32_t rank = 0;
  std::uint64_t epoch = 0;  // differs between two processes of one rank
};

class Endpoint {
 public:
  Endpoint(const Settings& settings, const Identity& self, Bytes job_secret, const Secret& entropy);

  // Starts (or restarts after a failure) a connection; the result is an event, also when it is connected already.
  void connect(Time now, std::uint32_t rank, const Address& address);
  void send(Time now, std::uint32_t rank, SendRequest request);
  void post(Time now, std::uint32_t rank, const ReceiveRequest& request);
  bool cancel(Time now, std::uint32_t rank, std::uint64_t token);
  // After it returns the buffer of this send is not read; the transfer continues from a copy.
  void detach(std::uint32_t rank, std::uint64_t token);
  // Closes every connection; poll_transmit then returns the packets that announce it.
  void shut();

  void handle_datagram(Time now, const Address& from, MutableBytes datagram);
  void handle_timeout(Time now);
  // Fills `out` with at most `segments` datagrams; false when there is nothing to send now.
  bool poll_transmit(Time now, MutableBytes out, std::size_t segments, Transmit& transmit);
  Time poll_timeout(Time now);
  bool poll_event(Event& event);

  const Peer* peer(std::uint32_t rank) const;
  const EndpointCounters& counters() const { return counters_; }
  const Identity& self() const { return self_; }

 private:
  struct PendingDatagram {
    Address to;
    Datagram bytes;
  };

  void send_greeting(Time now, Peer& peer);
  void fail(Time now, Peer& peer, Failure failure);
  void collect_events(Time now, Peer& peer);
  void refuse(EventType type, std::uint32_t rank, std::uint64_t token, std::uint64_t size, Failure failure);
  void start(Time now, Peer& peer, const ConnectionStart& start);
  void report_connected(const Peer& peer);
  void reject(const Address& from);
  // Answers a packet of no connection, within the budget.
  void answer(Time now, const Address& to, Datagram bytes);
  bool alive(Time now, const Peer& peer) const;

  void on_hello(Time now, const Address& from, Bytes datagram);
  void on_retry(Time now, Bytes datagram);
  void on_accept(Time now, const Address& from, Bytes datagram);
  void on_refuse(Time now, Bytes datagram);
  void on_reset(Time now, const Address& from, Bytes datagram);
  void on_knock(Time now, const Address& from, Bytes datagram);
  void on_versions(Time now, Bytes datagram);
  void on_other_version(Time now, const Address& from, Bytes datagram);
  void on_sealed(Time now, const Address& from, MutableBytes datagram);
  void follow(Time now, const Address& from, Peer& peer, bool newest);
  void accept(Time now, const Address& from, Peer& peer, const Hello& hello, Bytes datagram);
  void hint(const Address& from, Failure failure);
  Peer* greeting_peer(std::uint32_t connection);
  std::uint32_t fresh_connection();
  bool poll_pending(std::deque<PendingDatagram>& pending, MutableBytes out, Transmit& transmit);
  bool poll_peers(Time now, MutableBytes out, std::size_t segments, Transmit& transmit);
  bool fill(Time now, Peer& peer, MutableBytes out, std::size_t segments, Transmit& transmit);

  Settings settings_;
  Identity self_;
  Handshake handshake_;
  EndpointCounters counters_;
  Deadlines deadlines_;
  std::map<std::uint32_t, Peer> peers_;
  std::unordered_map<std::uint32_t, Peer*> by_connection_;
  std::deque<PendingDatagram>
      pending_datagrams_;  // of our own handshakes: sent first, as data that overtakes its ACCEPT would be lost
  std::deque<PendingDatagram> answers_;  // to packets of no connection: sent after what connections send
  std::deque<Event> events_;
  AnswerBudget budget_;
  AnswerBudget exchanges_;  // of keys: at 0.1 ms each, a tenth of a core
  std::uint32_t turn_ = 0;
  int runs_ = 0;  // of connections, since the last answer
  Time next_reset_ = 0;
};

}  // namespace gradwire::ltp
