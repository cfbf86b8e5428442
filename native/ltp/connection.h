// Connection: one established connection to one peer. Sealed packets in, transfers and acknowledgements out; no
// sockets, no clock, no thread. Input: handle_packet, handle_timeout, send, post, cancel, shut. Output: poll_packet,
// poll_timeout, events.
//
// Call order. `now` never decreases from one call to the next. After any input:
//   1. call poll_packet until it returns 0, and send each packet in that order;
//   2. take everything from events();
//   3. stop when failure() is set: no further packet or event follows;
//   4. call poll_timeout, and call handle_timeout at that time or later, unless another input comes first.
// After a pause of the process, handle_packet for what arrived comes before handle_timeout: the timer would declare a
// peer dead whose packets wait in the socket.
#pragma once
#include <deque>
#include <memory>
#include <utility>

#include "ltp/acks.h"
#include "ltp/keys.h"
#include "ltp/pmtu.h"
#include "ltp/receive_side.h"
#include "ltp/recovery.h"
#include "ltp/replay_window.h"
#include "ltp/send_side.h"
#include "ltp/settings.h"

namespace gradwire::ltp {

// No packet is built into less space than this: the longest ACK needs 552 bytes.
inline constexpr std::size_t kLeastRoom = 640;

struct ConnectionStart {
  std::uint32_t rank = 0;  // the peer's
  std::uint64_t epoch = 0;
  std::uint32_t local = 0, remote = 0;  // connection numbers
  HeldSecret sealing, opening;          // wiped once the keys exist
  bool encrypt = true;
  bool confirmed = false;  // true at the initiator; the responder waits for a sealed packet as proof of the peer
  std::uint32_t peer_credit = 0;
  std::uint16_t largest_datagram = 0;
  Time rtt = 0;  // measured by the handshake; 0: unknown
};

class Connection final : private PacketListener {
 public:
  // `deadlines` are shared by all connections of an endpoint.
  Connection(const Settings& settings, const ConnectionStart& start, Deadlines& deadlines, Time now);

  void send(Time now, SendRequest request);
  void post(Time now, const ReceiveRequest& request) { receives_.post(now, request); }
  // After it returns true the buffer is neither read nor written, and no event carries the token.
  bool cancel(Time now, std::uint64_t token);
  // After it returns the buffer of this send is not read; the transfer continues from a copy.
  void detach(std::uint64_t token) { sends_.detach(token); }
  // Returns every request, without events. Only before the peer has confirmed, so that no request is partly done.
  void hand_over(std::vector<SendRequest>& sends, std::vector<ReceiveRequest>& receives);
  void shut(ShutReason reason) { shutting_ = reason; }

  // True when the packet is authentic and newer than all before it: its source is where the peer is now.
  bool handle_packet(Time now, const SealedHeader& header, MutableBytes datagram);
  // A packet for an address that the peer seems to have moved to.
  std::size_t poll_challenge(Time now, MutableBytes out, std::uint64_t token);
  // The token of the last RESPONSE, 0 for none; asking takes it.
  std::uint64_t take_response() { return std::exchange(response_, 0); }
  // The peer is at another IP address: what was measured belongs to another path.
  void on_new_path(Time now);
  void handle_timeout(Time now);
  // Builds the next packet into `out`; 0 when there is nothing to send now. Uses at most out.size() bytes.
  std::size_t poll_packet(Time now, MutableBytes out);
  Time poll_timeout();
  std::deque<Event>& events() { return events_; }
  void fail(Time now, Failure failure);

  Failure failure() const { return failure_; }
  bool confirmed() const { return confirmed_; }
  const ConnectionStart& start() const { return start_; }
  Time last_received() const { return last_received_; }
  LinkStats stats() const;
  std::size_t datagram() const { return pmtu_.current(); }

 private:
  struct Packet;  // being built

  void on_packet_acked(const SentPacket& packet, bool spurious) override;
  void on_packet_lost(const SentPacket& packet) override;
  void requeue(const SentPacket& packet);
  bool well_formed(Bytes frames) const;
  void handle_frames(Time now, std::uint64_t number, Bytes frames);

  std::size_t poll_ack(Time now, MutableBytes out);
  std::size_t poll_shut(Time now, MutableBytes out);
  std::size_t poll_mtu_probe(Time now, MutableBytes out);
  std::size_t poll_data(Time now, MutableBytes out, bool forced);
  std::size_t poll_ping(Time now, MutableBytes out);
  void add_controls(Packet& packet);
  bool add_control(Packet& packet, const Control& control);
  bool add_data(Packet& packet, Outgoing& transfer);
  std::size_t finish(Time now, Packet& packet, MutableBytes out);
  void update_keys();
  std::size_t payload() const { return pmtu_.current() - kSealedOverhead - kDataHeader; }

  const Settings& settings_;
  ConnectionStart start_;
  LinkCounters counters_;
  ControlQueue control_;
  std::deque<Event> events_;
  SealingKeys sealing_;
  OpeningKeys opening_;
  ReplayWindow<8192> replay_window_;
  Acks acks_;
  Recovery recovery_;
  Pmtu pmtu_;
  SendSide sends_;
  ReceiveSide receives_;
  Time last_received_, created_, now_;
  Time next_keepalive_;
  std::uint64_t response_ = 0;
  bool confirmed_;
  bool ping_ = false;
  ShutReason shutting_{};
  Failure failure_ = Failure::none;
};

}  // namespace gradwire::ltp
