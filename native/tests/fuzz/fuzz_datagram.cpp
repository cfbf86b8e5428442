// libFuzzer target: hostile bytes at every depth. The first byte chooses where they enter:
//   0  a datagram of an unknown sender, into an endpoint that waits for a connection
//   1  the frames of an authentic packet, into an established connection (a peer that knows the keys and is faulty)
//   2  the parsers alone; each packet that they accept is written and parsed again
#include <cstdint>
#include <memory>
#include <vector>

#include "ltp/endpoint.h"

using namespace gradwire;
using namespace gradwire::ltp;

namespace {

const std::uint8_t kSecret[] = "a secret for fuzzing";

void stranger(MutableBytes bytes) {
  Endpoint endpoint({}, {1, 7}, kSecret, Secret{});
  Address from;
  from.port = 9;
  endpoint.connect(1, 0, from);
  std::vector<std::uint8_t> out(65536);
  Transmit transmit;
  endpoint.handle_datagram(2, from, bytes);
  while (endpoint.poll_transmit(3, out, 4, transmit)) {
  }
  endpoint.handle_timeout(kSecond);
}

// A connection with a transfer each way; `bytes` are pieces of frames, each prefixed by its length. A length of 0: the
// next generation of keys.
void faulty_peer(Bytes bytes) {
  Settings settings;
  settings.credit = 100'000;
  ConnectionStart start;
  start.local = start.remote = 5;
  start.confirmed = true;
  start.peer_credit = 100'000;
  start.largest_datagram = 1472;
  start.rtt = kMillisecond;
  Deadlines deadlines(settings);
  Connection connection(settings, start, deadlines, 0);
  SealingKeys peer(start.opening);
  std::vector<std::uint8_t> source(20'000, 1), destination(20'000), out(2000);
  connection.post(0, {1, destination.data(), destination.size(), 7, 0, 0});
  connection.send(0, {2, source.data(), source.size(), 7, 4, 0, 900'000, {}, 3});
  Reader in(bytes);
  Time now = 0;
  for (std::uint64_t number = 0; in.left(); ++number) {
    Bytes frames = in.bytes(std::min<std::size_t>(in.u8() * 5u, in.left()));
    if (frames.empty()) {
      peer.advance();
      continue;
    }
    std::vector<std::uint8_t> datagram(kSealedHeader + frames.size() + kTagSize);
    Writer writer(MutableBytes(datagram).first(kSealedHeader));
    SealedHeader header{peer.generation(), 5, number};
    write(writer, header);
    peer.seal(number, Bytes(datagram).first(kSealedHeader), frames, {}, datagram.data() + kSealedHeader, true);
    now += kMillisecond;
    connection.handle_packet(now, header, datagram);
    connection.handle_timeout(now);
    for (int i = 0; i < 20 && connection.poll_packet(now, out); ++i) {
    }
    connection.poll_timeout();
  }
  connection.fail(now, Failure::closed);
}

template <class P>
void round_trip(Bytes bytes) {
  P packet;
  if (!parse(bytes, packet)) return;
  std::uint8_t again[kBaseDatagram];
  Writer out(again);
  write(out, packet);
  if (!out.ok()) __builtin_trap();
}

void parsers(Bytes bytes) {
  round_trip<Retry>(bytes), round_trip<Accept>(bytes), round_trip<Refuse>(bytes), round_trip<Reset>(bytes),
      round_trip<Knock>(bytes), round_trip<Versions>(bytes);
  Hello hello;
  if (parse(bytes, hello)) core(bytes);
  AnyHello any;
  parse(bytes, any);
  Reader in(bytes);
  Frame frame;
  while (in.left() && next_frame(in, frame)) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  std::vector<std::uint8_t> bytes(data + 1, data + size);
  if (data[0] % 3 == 0) stranger(bytes);
  if (data[0] % 3 == 1) faulty_peer(bytes);
  if (data[0] % 3 == 2) parsers(bytes);
  return 0;
}
