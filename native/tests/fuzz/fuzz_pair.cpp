// libFuzzer target: two endpoints and a network that the input drives. The input decides what happens to each datagram:
// it arrives, is lost, duplicated, held back, cut, lengthened, changed, sent from another address, or replaced by an
// older one. Between datagrams the endpoints send, receive and cancel. Then the network works normally again. In all
// cases, what is reported as delivered must be what was sent.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "ltp/endpoint.h"

using namespace gradwire;
using namespace gradwire::ltp;

namespace {

const std::uint8_t kSecret[] = "a secret for fuzzing";

void require(bool holds) {
  if (!holds) __builtin_trap();
}

struct Message {
  std::vector<std::uint8_t> source, target;
  std::uint32_t from = 0;
  bool posted = false;
};

Address address_of(std::uint32_t rank) {
  Address address;
  address.port = static_cast<std::uint16_t>(9 + rank);
  return address;
}

class World {
 public:
  explicit World(Bytes script) : script_(script) {
    for (std::uint32_t rank : {0u, 1u}) {
      Settings settings;
      settings.credit = 20'000;
      ends_[rank] = std::make_unique<Endpoint>(settings, Identity{rank, rank + 1}, kSecret,
                                               Secret{static_cast<std::uint8_t>(rank)});
    }
    for (std::uint32_t rank : {0u, 1u}) ends_[rank]->connect(now_, 1 - rank, address_of(1 - rank));
  }

  void run() {
    for (int steps = 0; script_.left() && steps < 150; ++steps) {
      act();
      turn();
    }
    healthy_ = true;
    for (std::size_t i = 0; i < messages_.size(); ++i) post(i);
    for (int steps = 0; steps < 100; ++steps) turn();
  }

 private:
  struct Arrival {
    Time at;
    std::uint32_t to;
    Address from;
    Datagram bytes;
  };

  void act() {
    std::uint8_t what = script_.u8();
    switch (what % 8) {
      case 0: return send(what >> 3 & 1, 1 + script_.u16() % 12'000, what >> 4);
      case 1: return post(script_.u8());
      case 2: return cancel(script_.u8(), what >> 3 & 1);
      case 3: now_ += script_.u16() * kMicrosecond; return;
      case 4: now_ += script_.u8() * 20 * kMillisecond; return;
      default: return;
    }
  }
  void send(std::uint32_t from, std::size_t size, std::uint8_t kind) {
    if (messages_.size() >= 12) return;
    auto message = std::make_unique<Message>();
    for (std::size_t i = 0; i < size; ++i)
      message->source.push_back(static_cast<std::uint8_t>(1 + (i * 7 + messages_.size()) % 255));
    message->target.assign(size, 0);
    message->from = from;
    SendRequest request;
    request.token = request.tag = messages_.size();
    request.data = message->source.data();
    request.size = size;
    request.element = kind & 1 ? 4 : 1;
    request.tolerance = kind & 2 ? kWhole / 2 : kWhole;
    request.seed = size;
    if (kind & 4) request.critical.push_back({0, std::min<std::uint64_t>(size, 100)});
    messages_.push_back(std::move(message));
    ends_[from]->send(now_, 1 - from, std::move(request));
  }
  void post(std::size_t number) {
    if (number >= messages_.size() || messages_[number]->posted) return;
    Message& message = *messages_[number];
    message.posted = true;
    ends_[1 - message.from]->post(now_, message.from,
                                  {number, message.target.data(), message.target.size(), number, 0, 0});
  }
  // A cancelled buffer is freed: the sanitizer reports any later access.
  void cancel(std::size_t number, bool receive) {
    if (number >= messages_.size() || (receive && !messages_[number]->posted)) return;
    Message& message = *messages_[number];
    std::uint32_t side = receive ? 1 - message.from : message.from;
    if (!ends_[side]->cancel(now_, 1 - side, number)) return;
    (receive ? message.target : message.source) = {};
  }

  void turn() {
    deliver();
    for (std::uint32_t rank : {0u, 1u}) {
      if (ends_[rank]->poll_timeout(now_) <= now_) ends_[rank]->handle_timeout(now_);
      drain(rank);
    }
    now_ += kMillisecond;
    if (healthy_) now_ = std::max(now_, next());
  }
  // When something happens next; the end may come before the last keepalive.
  Time next() const {
    Time soonest = now_ + kSecond;
    for (const Arrival& arrival : arrivals_) soonest = std::min(soonest, arrival.at);
    for (auto& end : ends_) soonest = std::min(soonest, end->poll_timeout(now_));
    return soonest;
  }
  void drain(std::uint32_t rank) {
    Transmit run;
    for (int i = 0; i < 20 && ends_[rank]->poll_transmit(now_, buffer_, 8, run); ++i)
      for (std::size_t at = 0; at < run.size; at += run.segment)
        carry(rank, Bytes(buffer_).subspan(at, std::min(run.segment, run.size - at)));
    Event event;
    while (ends_[rank]->poll_event(event)) note(rank, event);
  }
  void note(std::uint32_t rank, const Event& event) {
    if (event.type != EventType::received || event.failure != Failure::none || event.reason != CloseReason::complete)
      return;
    Message& message = *messages_.at(event.token);
    require(rank == 1 - message.from && event.arrived == event.size && event.missing.empty());
    if (message.source.size() == message.target.size()) require(message.source == message.target);
  }

  void carry(std::uint32_t from, Bytes bytes) {
    Datagram copy(bytes.begin(), bytes.end());
    if (tape_.size() < 32) tape_.push_back({0, 1 - from, address_of(from), copy});
    Arrival arrival{now_ + kMillisecond, 1 - from, address_of(from), std::move(copy)};
    std::uint8_t fate = healthy_ || !script_.left() ? 255 : script_.u8();
    switch (fate % 32) {
      case 0:
      case 1: return;
      case 2: arrivals_.push_back(arrival); break;
      case 3: arrival.at += (1 + script_.u8()) * kMillisecond; break;
      case 4: arrival.bytes.resize(script_.u16() % (arrival.bytes.size() + 1)); break;
      case 5: arrival.bytes.resize(arrival.bytes.size() + script_.u8(), 0xee); break;
      case 6:
      case 7:
        arrival.bytes[script_.u16() % arrival.bytes.size()] ^= static_cast<std::uint8_t>(1 + script_.u8() % 255);
        break;
      case 8: arrival.from.port = script_.u8(); break;
      case 9: arrival = tape_[script_.u8() % tape_.size()], arrival.at = now_ + kMillisecond; break;
      case 10: arrival.to = from; break;  // reflected to its sender
      default: break;
    }
    arrivals_.push_back(std::move(arrival));
  }
  void deliver() {
    for (std::size_t i = 0; i < arrivals_.size();) {
      if (arrivals_[i].at > now_) {
        ++i;
        continue;
      }
      Arrival arrival = std::move(arrivals_[i]);
      arrivals_.erase(arrivals_.begin() + static_cast<std::ptrdiff_t>(i));
      ends_[arrival.to]->handle_datagram(now_, arrival.from, arrival.bytes);
    }
  }

  Reader script_;
  std::unique_ptr<Endpoint> ends_[2];
  std::vector<std::unique_ptr<Message>> messages_;
  std::deque<Arrival> arrivals_;
  std::vector<Arrival> tape_;
  std::vector<std::uint8_t> buffer_ = std::vector<std::uint8_t>(65536);
  bool healthy_ = false;
  Time now_ = kSecond;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  World(Bytes(data, size)).run();
  return 0;
}
