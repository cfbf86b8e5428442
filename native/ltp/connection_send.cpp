#include <algorithm>

#include "ltp/connection.h"

namespace gradwire::ltp {

// Frames are collected here; the bytes of a data frame stay in the sender's buffer until they are sealed.
struct Connection::Packet {
  Packet(Recovery& recovery, std::size_t size)
      : number(recovery.next_number()),
        room(size - kSealedOverhead),
        frames(MutableBytes(buffer).first(std::min(sizeof buffer, room))) {}

  std::size_t left() const { return room - frames.size() - payload.size(); }

  std::uint64_t number;
  std::size_t room;
  std::uint8_t buffer[kBaseDatagram];
  Writer frames;
  Bytes payload;
  SentPacket record;
  bool eliciting = false;
};

std::size_t Connection::poll_packet(Time now, MutableBytes out) {
  now_ = now;
  if (failure_ != Failure::none || out.size() < kLeastRoom) return 0;
  if (shutting_ != ShutReason{}) return poll_shut(now, out);
  if (acks_.due(now)) return poll_ack(now, out);
  if (recovery_.probes() > 0) {
    recovery_.spend_probe();
    if (std::size_t size = poll_data(now, out, true)) return size;
    return poll_ping(now, out);
  }
  if (ping_) return poll_ping(now, out);
  if (std::size_t size = poll_mtu_probe(now, out)) return size;
  return poll_data(now, out, false);
}

// SHUT comes last: ACK and control frames are sent first, so that a peer whose data was delivered does not see its
// transfer fail.
std::size_t Connection::poll_shut(Time now, MutableBytes out) {
  Packet packet(recovery_, std::min(kBaseDatagram, out.size()));
  packet.room -= kShutSize;
  if (acks_.any()) {
    AckFrame ack;
    acks_.fill(now, ack);
    write(packet.frames, ack);
  }
  add_controls(packet);
  if (!control_.empty() && packet.record.controls) return finish(now, packet, out);
  packet.room += kShutSize;
  write(packet.frames, ShutFrame{shutting_});
  std::size_t size = finish(now, packet, out);
  fail(now, Failure::local_close);
  return size;
}

std::size_t Connection::poll_ack(Time now, MutableBytes out) {
  Packet packet(recovery_, std::min(kBaseDatagram, out.size()));
  AckFrame ack;
  acks_.fill(now, ack);
  write(packet.frames, ack);
  // An ACK has space for control frames: CLOSE is usually sent here.
  add_controls(packet);
  return finish(now, packet, out);
}

std::size_t Connection::poll_ping(Time now, MutableBytes out) {
  ping_ = false;
  Packet packet(recovery_, kLeastRoom);
  write(packet.frames, PingFrame{});
  packet.eliciting = true;
  return finish(now, packet, out);
}

std::size_t Connection::poll_mtu_probe(Time now, MutableBytes out) {
  std::size_t size = pmtu_.due(now);
  if (!size || size > out.size() || !confirmed_ || recovery_.timeouts() > 0) return 0;
  static constexpr std::uint8_t zeros[65536] = {};
  Packet packet(recovery_, size);
  write(packet.frames, PingFrame{});
  packet.payload = Bytes(zeros, packet.left());  // a PADDING frame to the end
  packet.eliciting = packet.record.mtu_probe = true;
  pmtu_.on_probe_sent();
  return finish(now, packet, out);
}

std::size_t Connection::poll_data(Time now, MutableBytes out, bool forced) {
  Outgoing* transfer = sends_.ready(payload());
  std::size_t size = std::min(pmtu_.current(), out.size());
  // No data although the window allows some: rate samples now measure the application, not the path, also while control
  // frames are paced.
  if (!transfer && !forced && recovery_.window_allows(size)) recovery_.on_app_limited();
  if (!transfer && control_.empty()) return 0;
  // Control frames wait for the pacer like data, but not for the window: a frame that unblocks the peer must not wait
  // for a round trip.
  if (!forced && !recovery_.pacing_allows(now, size)) return 0;
  bool may_send = forced || recovery_.window_allows(size);
  if (!may_send && control_.empty()) return 0;
  Packet packet(recovery_, size);
  add_controls(packet);
  bool whole_fits = transfer && packet.left() >= transfer->header() + std::min<std::size_t>(transfer->block_bytes(),
                                                                                            transfer->request().size);
  if (transfer && may_send && (packet.frames.size() == 0 || whole_fits)) add_data(packet, *transfer);
  return packet.frames.size() ? finish(now, packet, out) : 0;
}

void Connection::add_controls(Packet& packet) {
  while (!control_.empty() && packet.record.controls < kControlsPerPacket) {
    if (!add_control(packet, control_.front())) return;
    control_.pop_front();
  }
}

// Builds the frame from the current state. False when it does not fit; a control whose transfer is gone is dropped.
bool Connection::add_control(Packet& packet, const Control& control) {
  std::size_t room = std::min(packet.left(), packet.frames.left());
  auto put = [&](const auto& frame, std::size_t size) {
    if (size > room) return false;
    write(packet.frames, frame);
    packet.record.control[packet.record.controls++] = control;
    return packet.eliciting = true;
  };
  switch (control.type) {
    case FrameType::open: {
      Outgoing* transfer = sends_.find(control.id);
      if (!transfer || transfer->open_acked) return true;
      OpenFrame open = transfer->open_frame();
      open.rtprop_us = static_cast<std::uint32_t>(std::min<Time>(recovery_.rtt().least() / kMicrosecond, 0xffffffff));
      open.btlbw = static_cast<std::uint64_t>(recovery_.congestion().bottleneck());
      return put(open, size_of(open));
    }
    case FrameType::posted: {
      const ReceiveRequest* request = receives_.posted(control.tag);
      return !request || put(PostedFrame{request->tag, request->size}, 17);
    }
    case FrameType::close: {
      const Incoming* incoming = receives_.closing(control.id);
      if (!incoming) return true;
      CloseFrame close = incoming->close_frame(control.part);
      return put(close, size_of(close));
    }
    case FrameType::grant: return put(GrantFrame{control.id}, 9);
    case FrameType::hold: return !receives_.held(control.id) || put(HoldFrame{control.id}, 9);
    case FrameType::once: return !sends_.find(control.id) || put(OnceFrame{control.id}, 9);
    case FrameType::response: return put(ResponseFrame{control.tag}, 9);
    case FrameType::abort: return put(AbortFrame{control.id}, 9);
    default: return true;
  }
}

// Not sent again when it is lost: the next packet from that address causes another one.
std::size_t Connection::poll_challenge(Time now, MutableBytes out, std::uint64_t token) {
  if (failure_ != Failure::none) return 0;
  Packet packet(recovery_, kLeastRoom);
  write(packet.frames, ChallengeFrame{token});
  packet.eliciting = true;
  return finish(now, packet, out);
}

bool Connection::add_data(Packet& packet, Outgoing& transfer) {
  Outgoing::Piece piece;
  // On a path with a large MTU, controls can fill `frames` and leave space in the packet: a payload without its header
  // would be read as PADDING.
  std::size_t header = transfer.header();
  if (packet.frames.left() < header) return false;
  if (packet.left() <= header || !transfer.next(packet.left() - header, piece)) return false;
  write_data_header(packet.frames, transfer.id(), piece.first, piece.bytes.size(), piece.share);
  packet.payload = piece.bytes;
  packet.record.transfer = transfer.id();
  packet.record.first = piece.first;
  packet.record.count = piece.count;
  packet.eliciting = true;
  sends_.on_piece(transfer, piece);
  return true;
}

void Connection::update_keys() {
  if (sealing_.sealed() < settings_.key_update_after || !recovery_.generation_acked(sealing_.generation())) return;
  sealing_.advance();
  ++counters_.key_updates;
}

std::size_t Connection::finish(Time now, Packet& packet, MutableBytes out) {
  update_keys();
  if (sealing_.exhausted() || packet.number > kLastNumber) {
    fail(now, Failure::key_limit);
    return 0;
  }
  Writer writer(out);
  write(writer, SealedHeader{sealing_.generation(), start_.remote, packet.number});
  Bytes header = writer.written();
  std::size_t size = kSealedOverhead + packet.frames.size() + packet.payload.size();
  // A frame that did not fit must never be sent in part.
  if (!packet.frames.ok() || !sealing_.seal(packet.number, header, packet.frames.written(), packet.payload,
                                            out.data() + kSealedHeader, start_.encrypt)) {
    fail(now, Failure::protocol);
    return 0;
  }
  packet.record.bytes = static_cast<std::uint16_t>(size);
  packet.record.generation = sealing_.generation();
  SentPacket& record = recovery_.begin_packet();
  record = packet.record;
  recovery_.on_sent(now, record, packet.eliciting);
  return size;
}

}  // namespace gradwire::ltp
