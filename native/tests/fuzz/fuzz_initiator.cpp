// libFuzzer target: an initiator, and possible answers to it. The input is a list of steps; the first byte of each
// chooses one: RETRY, ACCEPT, REFUSE, RESET, KNOCK or VERSIONS with numbers from the input and authentic tags, frames
// under the keys that an ACCEPT led to (of any generation), the input's bytes unchanged, or the passing of time.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "ltp/endpoint.h"

using namespace gradwire;
using namespace gradwire::ltp;

namespace {

const std::uint8_t kSecret[] = "a secret for fuzzing";

class Responder {
 public:
  Responder()
      : endpoint_({}, {0, 7}, kSecret, Secret{}), handshake_(kSecret, Secret{1}), source_(3000, 1), target_(3000) {
    address_.port = 9;
    endpoint_.connect(now_, 1, address_);
    endpoint_.post(now_, 1, {1, target_.data(), target_.size(), 7, 0, 0});
    SendRequest request;
    request.token = 2;
    request.data = source_.data();
    request.size = source_.size();
    request.tag = 7;
    request.element = 4;
    endpoint_.send(now_, 1, std::move(request));
    endpoint_.handle_timeout(now_);
    drain();
  }

  void step(Reader& in) {
    switch (in.u8() % 10) {
      case 0: return answer(Retry{number(in), cookie(in)}, hello_.nonce);
      case 1: return accept(in);
      case 2: return answer(Refuse{static_cast<Refusal>(in.u8() % 5), number(in), in.u64()}, hello_.nonce);
      case 3: return answer(Reset{in.u8() % 2 ? remote_ : in.u32(), in.u8(), in.u64()}, {});
      case 4: return answer(Knock{in.u8(), in.u8(), in.u64()}, {});
      case 5: return seal(in);
      case 6: return advance();
      case 7: return deliver(taken(in));
      case 8: return answer(Versions{number(in), in.u8(), in.u8()}, hello_.nonce);
      default:
        now_ += in.u16() * kMillisecond;
        endpoint_.handle_timeout(now_);
        drain();
    }
  }

 private:
  std::uint32_t number(Reader& in) { return in.u8() % 8 ? hello_.connection : in.u32(); }
  Cookie cookie(Reader& in) {
    Cookie made{};
    in.copy(made);
    return made;
  }
  Datagram taken(Reader& in) {
    Bytes bytes = in.bytes(std::min<std::size_t>(in.u8() * 5u, in.left()));
    return {bytes.begin(), bytes.end()};
  }

  // Takes what the endpoint sends: answers refer to its HELLO.
  void drain() {
    std::vector<std::uint8_t> out(65536);
    Transmit transmit;
    for (int i = 0; i < 50 && endpoint_.poll_transmit(now_, out, 4, transmit); ++i) {
      Hello hello;
      if (transmit.size == transmit.segment && peek_kind(Bytes(out).first(transmit.size)) == Kind::hello &&
          parse(Bytes(out).first(transmit.size), hello))
        hello_ = hello;
    }
    Event event;
    while (endpoint_.poll_event(event)) {
    }
    endpoint_.poll_timeout(now_);
  }
  void deliver(Datagram datagram) {
    now_ += kMicrosecond;
    endpoint_.handle_datagram(now_, address_, datagram);
    drain();
  }
  template <class P>
  void answer(const P& packet, Bytes context) {
    deliver(handshake_.sealed(packet, context));
  }
  void accept(Reader& in) {
    Accept packet;
    packet.encrypt = in.u8() % 2;
    packet.connection = number(in);
    packet.own_connection = in.u32();
    packet.rank = in.u8() % 8 ? 1 : in.u32();
    packet.epoch = in.u64();
    in.copy(packet.nonce);
    packet.credit = in.u32();
    packet.largest_datagram = in.u16();
    packet.key = key_.public_key();
    if (in.u8() % 8 == 0) in.copy(packet.key);
    encrypt_ = packet.encrypt;
    remote_ = packet.own_connection;
    Datagram datagram = handshake_.sealed(packet, core(hello_));
    if (packet.key == key_.public_key())
      if (auto secrets = handshake_.keys(key_, hello_.key, core(hello_), datagram)) keys_.emplace(secrets->responder);
    number_ = 0;
    deliver(std::move(datagram));
  }
  void advance() {
    if (keys_) keys_->advance();
  }
  void seal(Reader& in) {
    number_ += 1 + in.u8() % 4;
    Datagram frames = taken(in);
    if (!keys_ || frames.empty()) return;
    Datagram datagram(kSealedHeader + frames.size() + kTagSize);
    Writer writer(MutableBytes(datagram).first(kSealedHeader));
    write(writer, SealedHeader{keys_->generation(), hello_.connection, number_});
    keys_->seal(number_, Bytes(datagram).first(kSealedHeader), frames, {}, datagram.data() + kSealedHeader, encrypt_);
    deliver(std::move(datagram));
  }

  Endpoint endpoint_;
  Handshake handshake_;
  EphemeralKey key_{HeldSecret(Secret{2})};
  std::vector<std::uint8_t> source_, target_;
  Address address_;
  Hello hello_;
  std::uint32_t remote_ = 0;
  bool encrypt_ = true;
  std::optional<SealingKeys> keys_;
  std::uint64_t number_ = 0;
  Time now_ = kSecond;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Responder responder;
  Reader in(Bytes(data, size));
  for (int steps = 0; in.left() && steps < 64; ++steps) responder.step(in);
  return 0;
}
