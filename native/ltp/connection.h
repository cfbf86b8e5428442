// One established connection to one peer: sealed packets in, transfers and acknowledgements out. No sockets, no clock.
// Input: handle_packet, handle_timeout, send, post. Output: poll_packet, poll_timeout, events.
#pragma once
#include <deque>
#include <memory>

#include "ltp/acks.h"
#include "ltp/keys.h"
#include "ltp/pmtu.h"
#include "ltp/receive_side.h"
#include "ltp/recovery.h"
#include "ltp/seen.h"
#include "ltp/send_side.h"
#include "ltp/settings.h"

namespace gradwire::ltp {

// Less room than this is not worth a packet: the longest ACK needs 552 bytes.
inline constexpr std::size_t kLeastRoom = 640;

struct ConnectionStart {
  std::uint32_t rank = 0;  // the peer's
  std::uint64_t epoch = 0;
  std::uint32_t local = 0, remote = 0;  // connection numbers
  Secret sealing{}, opening{};
  bool encrypt = true;
  bool confirmed = false;  // the initiator has proof of the peer; the responder waits for a sealed packet
  std::uint32_t peer_credit = 0;
  std::uint16_t largest_datagram = 0;
  Time rtt = 0;  // of the handshake; 0: not known
};

class Connection final : private FateListener {
 public:
  Connection(const Settings& settings, const ConnectionStart& start, Time now);

  void send(Time now, SendRequest request);
  void post(Time now, const ReceiveRequest& request) { receives_.post(now, request); }
  // After true the buffer is neither read nor written, and no event carries the token.
  bool cancel(Time now, std::uint64_t token);
  // Gives up every request, without events; only before the peer has confirmed, so that none is half done.
  void hand_over(std::vector<SendRequest>& sends, std::vector<ReceiveRequest>& receives) const;
  void shut(ShutReason reason) { shutting_ = reason; }

  void handle_packet(Time now, const SealedHeader& header, MutableBytes datagram);
  void handle_timeout(Time now);
  // Builds the next packet into `out`; 0 when there is nothing to send now. Uses at most out.size() bytes.
  std::size_t poll_packet(Time now, MutableBytes out);
  Time poll_timeout(Time now);
  std::deque<Event>& events() { return events_; }
  void fail(Time now, Failure failure);

  Failure failure() const { return failure_; }
  bool confirmed() const { return confirmed_; }
  const ConnectionStart& start() const { return start_; }
  Time last_heard() const { return last_heard_; }
  LinkStats stats() const;
  std::size_t datagram() const { return pmtu_.current(); }

 private:
  struct Packet;  // one under construction

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
  Counters counters_;
  ControlQueue control_;
  std::deque<Event> events_;
  SealingKeys sealing_;
  OpeningKeys opening_;
  Seen<8192> replay_;
  Acks acks_;
  Recovery recovery_;
  Pmtu pmtu_;
  SendSide sends_;
  ReceiveSide receives_;
  Time last_heard_, created_, now_;
  Time next_keepalive_;
  bool confirmed_;
  bool ping_ = false;
  ShutReason shutting_{};
  Failure failure_ = Failure::none;
};

}  // namespace gradwire::ltp
