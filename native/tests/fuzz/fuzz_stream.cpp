// libFuzzer target: streams. The first byte chooses where the rest enters:
//   0  the greeting's parser; what it accepts is written and parsed again
//   1  the bytes of a channel without seals, cut anywhere, into a connection that sends and receives
//   2  frames with numbers from the input under authentic seals (a faulty peer), or changed after sealing
//   3  two connections over channels that give and take as little as the input says; what arrives is what was sent
#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "stream/connection.h"
#include "stream/greeting.h"
#include "tests/requests.h"

using namespace gradwire;
using stream::Connection;
using stream::Frame;
using stream::FrameType;
using test::sending;

namespace {

void require(bool holds) {
  if (!holds) __builtin_trap();
}

// One direction of a channel in memory.
struct Pipe {
  std::vector<std::uint8_t> bytes;
  std::size_t at = 0;  // read so far
  std::size_t left() const { return bytes.size() - at; }
  void put(const std::uint8_t* from, std::size_t size) {
    if (at == bytes.size()) bytes.clear(), at = 0;
    bytes.insert(bytes.end(), from, from + size);
  }
};

// Gives at most `step` bytes a call and holds at most `most`.
class PipeChannel : public stream::Channel {
 public:
  PipeChannel(Pipe& in, Pipe& out, std::size_t step, std::size_t most) : in_(in), out_(out), step_(step), most_(most) {}
  std::ptrdiff_t write(std::span<const iovec> pieces) override {
    std::size_t total = 0;
    for (const iovec& piece : pieces) {
      std::size_t part = std::min(piece.iov_len, most_ - std::min(most_, out_.left()));
      out_.put(static_cast<const std::uint8_t*>(piece.iov_base), part);
      total += part;
      if (part < piece.iov_len) break;
    }
    return static_cast<std::ptrdiff_t>(total);
  }
  std::ptrdiff_t read(std::span<const iovec> pieces) override {
    std::size_t total = 0;
    for (const iovec& piece : pieces) {
      std::size_t part = std::min({piece.iov_len, step_ - total, in_.left()});
      std::copy_n(in_.bytes.begin() + static_cast<std::ptrdiff_t>(in_.at), part,
                  static_cast<std::uint8_t*>(piece.iov_base));
      in_.at += part;
      total += part;
    }
    return static_cast<std::ptrdiff_t>(total);
  }
  int fd() const override { return -1; }
  bool polled_for_writable() const override { return true; }
  void describe(LinkStats&) override {}

 private:
  Pipe &in_, &out_;
  std::size_t step_, most_;
};

constexpr std::uint64_t kCredit = 5000;

struct End {
  End(Pipe& incoming, Pipe& outgoing, std::size_t step, std::size_t most,
      const std::optional<stream::Protection>& protection)
      : channel(incoming, outgoing, step, most), connection(channel, out, in, control, protection) {
    out.set_credit(kCredit);
  }
  std::deque<Event> events;
  std::deque<Frame> control;
  stream::Outbox out{1, events};
  stream::Inbox in{1, kCredit, events, control};
  PipeChannel channel;
  Connection connection;
};

void greeting(Bytes bytes) {
  stream::Greeter greeter(Bytes{});
  greeter.authentic(bytes);
  auto parsed = stream::Greeter::parse(bytes);
  if (!parsed) return;
  stream::GreetingBytes again = greeter.write(*parsed, bytes);
  require(greeter.authentic(again, bytes));
  require(std::equal(again.begin(), again.begin() + 16, bytes.begin()));
}

bool open(Connection::Status status) {
  return status == Connection::Status::more || status == Connection::Status::idle;
}

// Runs a connection on what lies in `incoming`, with a transfer each way, one of them cancelled somewhere.
void serve(Pipe& incoming, std::size_t step, std::uint8_t cancel_at,
           const std::optional<stream::Protection>& protection) {
  Pipe outgoing;
  End end(incoming, outgoing, step, SIZE_MAX, protection);
  std::vector<std::uint8_t> small(300, 1), large(100'000, 2), target(2000);
  end.out.send(0, sending(small, 1, 1));
  end.out.send(0, sending(large, 2, 2));
  end.in.post(0, {3, target.data(), target.size(), 1, 0, 0}, true);
  end.in.post(0, {4, target.data(), target.size(), 2, 0, 0}, true);
  auto status = Connection::Status::more;
  for (Time turn = 1; turn < 3000 && open(status) && (status == Connection::Status::more || incoming.left()); ++turn) {
    if (turn == cancel_at) end.in.cancel(3), end.connection.detach(2), end.out.cancel(2);
    status = end.connection.receive(turn);
    end.connection.flush(turn);
    outgoing = {};
  }
  end.out.fail_all(Failure::closed);
  end.in.fail_all(Failure::closed);
}

Frame frame_of(Reader& in) {
  Frame frame;
  std::uint8_t shape = in.u8();
  frame.type = static_cast<FrameType>(1 + shape % 10);
  frame.flags = static_cast<std::uint8_t>(shape >> 6 == 3 ? in.u8() : shape >> 6 & 1);
  frame.length = in.u8() * (shape & 32 ? 300u : 1u);
  auto number = [&] { return in.u8() % 16 ? std::uint64_t{in.u8()} : in.u64(); };
  frame.id = number();
  frame.a = number();
  frame.b = number() * (shape & 32 ? 300u : 1u);
  return frame;
}

void faulty_peer(Reader in, bool encrypt) {
  std::uint8_t step = in.u8(), cancel_at = in.u8();
  std::uint16_t flip = in.u16();
  stream::RecordKeys keys(Secret{1}, Aead::Direction::seal);
  std::vector<std::uint8_t> bytes;
  auto seal = [&](std::vector<std::uint8_t> text) {
    std::uint8_t tag[16];
    keys.seal(text, text.data(), tag, encrypt);
    bytes.insert(bytes.end(), text.begin(), text.end());
    bytes.insert(bytes.end(), tag, tag + 16);
  };
  for (int frames = 0; in.left() && frames < 40; ++frames) {
    Frame frame = frame_of(in);
    std::vector<std::uint8_t> header(stream::kHeader);
    stream::write(header, frame);
    seal(header);
    if (frame.length && frame.length <= stream::kPiece) seal(std::vector<std::uint8_t>(frame.length, 5));
  }
  if (flip < bytes.size()) bytes[flip] ^= 1;
  Pipe incoming{bytes};
  serve(incoming, 1 + step * 50u, cancel_at, stream::Protection{Secret{2}, Secret{1}, encrypt});
}

struct Message {
  std::vector<std::uint8_t> source, target;
  int from = 0;
  bool posted = false, cancelled = false, sent = false, received = false;
};

// Two ends that do what the input says; then all receives are posted and all bytes passed on: nothing waits for ever.
class Pair {
 public:
  Pair(std::size_t step, std::size_t most, bool sealed)
      : a_(there_, back_, step, most, protection(sealed, 1, 2)),
        b_(back_, there_, step, most, protection(sealed, 2, 1)) {}

  void act(Reader& in) {
    std::uint8_t what = in.u8();
    int from = what & 1;
    switch (what >> 1 & 3) {
      case 0:
      case 1: return send(from, what & 64 ? 60'000u + in.u16() / 4 : 1u + in.u16() % 3000, in.u8() % 4);
      case 2: return post(in.u8());
      default:
        if (what & 64) return cancel(in.u8());
        for (int turns = in.u8() % 8; turns >= 0; --turns) turn();
    }
  }

  void finish() {
    for (std::size_t i = 0; i < messages_.size(); ++i) post(i);
    for (int turns = 0; turns < 200'000 && !done(); ++turns) turn();
    require(done());
  }

 private:
  static std::optional<stream::Protection> protection(bool sealed, std::uint8_t own, std::uint8_t other) {
    if (!sealed) return std::nullopt;
    return stream::Protection{Secret{own}, Secret{other}, true};
  }
  End& end(int side) { return side ? b_ : a_; }

  // The tag is the message's own: which receive a message pairs with is then known here.
  void send(int from, std::size_t size, std::uint8_t fill) {
    if (messages_.size() >= 12) return;
    auto message = std::make_unique<Message>();
    message->source.assign(size, static_cast<std::uint8_t>(1 + fill + messages_.size()));
    message->target.assign(size, 0);
    message->from = from;
    std::uint64_t number = messages_.size();
    end(from).out.send(now_, sending(message->source, number, number));
    messages_.push_back(std::move(message));
  }
  void post(std::size_t number) {
    if (number >= messages_.size() || messages_[number]->posted || messages_[number]->cancelled) return;
    Message& message = *messages_[number];
    message.posted = true;
    end(1 - message.from).in.post(now_, {number, message.target.data(), message.target.size(), number, 0, 0}, true);
  }
  // The receive is cancelled and its buffer freed: the sanitizer reports a later write to it.
  void cancel(std::size_t number) {
    if (number >= messages_.size() || !messages_[number]->posted || messages_[number]->received) return;
    Message& message = *messages_[number];
    if (!end(1 - message.from).in.cancel(number)) return;
    message.cancelled = true;
    message.target = {};
  }
  void turn() {
    ++now_;
    for (int side : {0, 1}) {
      require(open(end(side).connection.receive(now_)));
      require(end(side).connection.flush(now_));
      for (auto& events = end(side).events; !events.empty(); events.pop_front()) note(side, events.front());
    }
  }
  void note(int side, const Event& event) {
    Message& message = *messages_.at(event.token);
    require(event.failure == Failure::none);
    bool inbound = event.type == EventType::received;
    require(side == (inbound ? 1 - message.from : message.from));
    (inbound ? message.received : message.sent) = true;
    if (inbound) require(event.arrived == event.size && message.target == message.source);
  }
  // The message of a cancelled receive may stay unclaimed, or its sender was informed.
  bool done() const {
    return std::all_of(messages_.begin(), messages_.end(),
                       [](auto& one) { return one->cancelled || (one->sent && one->received); });
  }

  Pipe there_, back_;
  End a_, b_;
  std::vector<std::unique_ptr<Message>> messages_;
  Time now_ = 0;
};

void pair(Reader in) {
  std::uint8_t step = in.u8(), most = in.u8();
  Pair two(16 + step * 97u, 64 + most * 211u, step & 1);
  for (int acts = 0; in.left() && acts < 60; ++acts) two.act(in);
  two.finish();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 4) return 0;
  Bytes rest(data + 1, size - 1);
  switch (data[0] % 4) {
    case 0: greeting(rest); break;
    case 1: {
      Pipe incoming{{rest.begin() + 2, rest.end()}};
      serve(incoming, 1 + rest[0], rest[1], std::nullopt);
      break;
    }
    case 2: faulty_peer(Reader(rest), data[0] & 4); break;
    default: pair(Reader(rest));
  }
  return 0;
}
