// Streams between loops of one process, over TCP and over rings: threads, cancellation, closing with work in progress,
// and hostile bytes at every depth. Built with the address and undefined-behaviour sanitizers, and with the thread one.
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>

#include "core/random.h"
#include "ltp_io/loop.h"
#include "stream/loop.h"
#include "tests/check.h"
#include "tests/requests.h"
#include "tests/stream_caller.h"

using namespace gradwire;
using test::Caller;
using test::dial;
using test::receive_greeting_bytes;
using test::send_greeting_bytes;
using test::sending;

namespace {

Time soon() { return monotonic_now() + 60 * kSecond; }

stream::LoopConfig config(std::uint32_t rank, bool local, bool encrypt = true) {
  stream::LoopConfig config;
  config.rank = rank;
  config.epoch = 100 + rank;
  config.secret.assign(32, 7);
  config.local = local;
  config.encrypt = encrypt;
  config.ring = 1u << 16;
  return config;
}

struct Two {
  explicit Two(bool local, bool encrypt = true) : a(config(0, local, encrypt)), b(config(1, local, encrypt)) {
    a.connect(1, "127.0.0.1", b.port());
    b.connect(0, "127.0.0.1", a.port());
    Failure failure;
    CHECK(a.wait_connected(1, soon(), failure));
    CHECK(b.wait_connected(0, soon(), failure));
  }
  stream::Loop a, b;
};

void threads_share_a_loop(bool local, bool encrypt) {
  Two two(local, encrypt);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      Random random(t);
      stream::Loop& from = t % 2 ? two.a : two.b;
      stream::Loop& to = t % 2 ? two.b : two.a;
      std::uint32_t source_rank = t % 2 ? 0 : 1;
      for (std::uint64_t round = 0; round < 30; ++round) {
        std::vector<std::uint8_t> source(1 + random.next() % 700'000), target(source.size());
        for (auto& byte : source) byte = static_cast<std::uint8_t>(random.next());
        std::uint64_t tag = t * 100 + round, in = 0;
        bool early = random.next() % 2;
        if (early) in = to.receive(source_rank, {0, target.data(), target.size(), tag, 0, 0});
        std::uint64_t out = from.send(1 - source_rank, sending(source, tag));
        if (!early) in = to.receive(source_rank, {0, target.data(), target.size(), tag, 0, 0});
        auto received = to.wait(in, soon());
        auto sent = from.wait(out, soon());
        if (!received) to.cancel(source_rank, in);
        if (!sent) from.cancel(1 - source_rank, out);
        if (!received || !sent || received->arrived != source.size() || source != target) ++wrong;
        from.link_stats();
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(two.a.link_stats().at(1).counters.bytes_sent > 0);
}

// The address sanitizer reports an access to either buffer after it was returned.
void cancelled_buffers_are_never_used_again(bool local, bool encrypt) {
  Two two(local, encrypt);
  Random random(5);
  for (std::uint64_t i = 0; i < 60; ++i) {
    auto source = std::make_unique<std::vector<std::uint8_t>>(1 + random.next() % 3'000'000, 9);
    auto target = std::make_unique<std::vector<std::uint8_t>>(source->size());
    std::uint64_t out = two.a.send(1, sending(*source, i));
    std::uint64_t in = two.b.receive(0, {0, target->data(), target->size(), i, 0, 0});
    for (std::uint64_t turns = random.next() % 4; turns; --turns) two.b.wait(in, monotonic_now() + 50 * kMicrosecond);
    if (i % 3 != 0) two.b.cancel(0, in), target.reset();
    if (i % 3 != 1) two.a.cancel(1, out), source.reset();
    two.b.cancel(0, in);
    target.reset();
    two.a.cancel(1, out);
  }
  // And the stream still works.
  std::vector<std::uint8_t> last(100'000, 3), box(100'000);
  std::uint64_t in = two.b.receive(0, {0, box.data(), box.size(), 999, 0, 0});
  std::uint64_t out = two.a.send(1, sending(last, 999));
  auto received = two.b.wait(in, soon());
  CHECK(received && received->failure == Failure::none && box == last);
  if (!received) two.b.cancel(0, in);
  if (!two.a.wait(out, soon())) two.a.cancel(1, out);
}

void closing_fails_pending_transfers(bool local) {
  Two two(local);
  std::vector<std::uint8_t> source(50'000'000, 9), target(source.size());
  std::uint64_t out = two.a.send(1, sending(source, 1));
  two.b.close();
  auto sent = two.a.wait(out, soon());
  CHECK(sent && sent->failure == Failure::closed);
  std::uint64_t in = two.a.receive(1, {0, target.data(), target.size(), 1, 0, 0});
  two.a.close();
  auto received = two.a.wait(in, soon());
  CHECK(received && received->failure != Failure::none);
  two.a.close();
}

// Sockets that write noise, half a greeting, or a greeting under another secret: counted, dropped, without effect on
// others.
void unauthenticated_sockets_are_counted_and_dropped() {
  Two two(false);
  Random random(3);
  std::uint8_t other_secret[16] = {1};
  stream::Greeter stranger{Bytes(other_secret)};
  for (int i = 0; i < 40; ++i) {
    int fd = dial(two.b.port());
    stream::GreetingBytes bytes = stranger.write({});
    if (i % 3 == 0)
      for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random.next());
    std::size_t size = i % 3 == 1 ? random.next() % bytes.size() : bytes.size();
    [[maybe_unused]] ssize_t sent = ::send(fd, bytes.data(), size, MSG_NOSIGNAL);
    ::shutdown(fd, SHUT_WR);
    char answer[256];
    while (::recv(fd, answer, sizeof answer, 0) > 0) {
    }
    ::close(fd);
  }
  stream::Counters counters = two.b.counters();
  CHECK(counters.malformed > 5);
  CHECK(counters.authentication_failed > 5);
  std::vector<std::uint8_t> source(1000, 1), target(1000);
  std::uint64_t in = two.b.receive(0, {0, target.data(), target.size(), 1, 0, 0});
  two.a.send(1, sending(source, 1));
  CHECK(two.b.wait(in, soon()) && source == target);
}

// Short deadlines, so that silence is detected while a test waits.
stream::LoopConfig brief(std::uint32_t rank) {
  stream::LoopConfig brief = config(rank, false);
  brief.keepalive = 50 * kMillisecond;
  brief.dead_after = 2 * kSecond;
  return brief;
}

// Whether and however a candidate without a frame ends, the rank that it claims to be connects.
void a_candidate_without_a_frame_does_not_block_its_rank() {
  enum class Ending { closed, noise, silence, none };
  for (Ending ending : {Ending::closed, Ending::noise, Ending::silence, Ending::none}) {
    stream::Loop a(brief(0)), b(brief(1));
    b.connect(0, "127.0.0.1", a.port());
    Caller caller(b.port());
    std::uint8_t noise[100] = {};
    if (ending == Ending::closed) ::shutdown(caller.fd, SHUT_WR);
    if (ending == Ending::noise) send_greeting_bytes(caller.fd, noise);
    if (ending != Ending::none) CHECK(caller.ended());
    a.connect(1, "127.0.0.1", b.port());
    Failure failure;
    CHECK(b.wait_connected(0, soon(), failure));
    CHECK(a.wait_connected(1, soon(), failure));
    std::vector<std::uint8_t> source(1000, 1), target(1000);
    std::uint64_t in = b.receive(0, {0, target.data(), target.size(), 1, 0, 0}), out = a.send(1, sending(source, 1));
    CHECK(b.wait(in, soon()) && a.wait(out, soon()) && source == target);
  }
}

void a_candidate_that_stays_silent_fails_at_the_deadline() {
  stream::LoopConfig hasty = config(1, false);
  hasty.connect_timeout = kSecond;
  stream::Loop b(hasty);
  Time start = monotonic_now();
  b.connect(0, "127.0.0.1", 1);
  {
    Caller caller(b.port(), hasty.secret);
  }
  Failure failure;
  CHECK(!b.wait_connected(0, soon(), failure));
  CHECK(failure == Failure::half_open);
  Time took = monotonic_now() - start;
  CHECK(took >= hasty.connect_timeout && took < 10 * kSecond);
}

// A HELLO answers one challenge: on another connection it is refused, at whatever moment of a start it comes.
void a_replayed_hello_is_refused_and_breaks_no_handshake() {
  stream::Loop b(brief(1));
  b.connect(0, "127.0.0.1", 1);
  Caller caller(b.port());
  int replay = dial(b.port());
  stream::GreetingBytes challenge{}, answer{};
  receive_greeting_bytes(replay, challenge);
  send_greeting_bytes(replay, caller.hello);
  receive_greeting_bytes(replay, answer);
  auto refusal = stream::Greeter::parse(answer);
  CHECK(refusal && refusal->kind == stream::Greeting::Kind::refuse &&
        refusal->refusal == stream::Greeting::Refusal::authentication);
  caller.prove();
  Failure failure;
  CHECK(b.wait_connected(0, soon(), failure));
  ::close(replay);
}

// Several sockets know the secret and claim to be rank 0. The one that sends a frame becomes the connection, in any
// order.
void the_first_candidate_with_a_sealed_frame_becomes_the_connection() {
  for (std::size_t proven = 0; proven < 3; ++proven) {
    stream::Loop b(brief(1));
    b.connect(0, "127.0.0.1", 1);
    Caller callers[3] = {Caller(b.port()), Caller(b.port()), Caller(b.port())};
    callers[proven].prove();
    Failure failure;
    CHECK(b.wait_connected(0, soon(), failure));
    for (std::size_t i = 0; i < 3; ++i)
      if (i != proven) CHECK(callers[i].ended());
    CHECK(!callers[proven].ended());
  }
}

// More candidates than are kept: the oldest are closed, and memory does not grow with their number.
void candidates_beyond_the_limit_evict_the_oldest() {
  stream::Loop b(brief(1));
  b.connect(0, "127.0.0.1", 1);
  std::vector<std::unique_ptr<Caller>> callers;
  for (int i = 0; i < 12; ++i) callers.push_back(std::make_unique<Caller>(b.port()));
  CHECK(callers.front()->ended());
  callers.back()->prove();
  Failure failure;
  CHECK(b.wait_connected(0, soon(), failure));
}

// Rank 0 connects and then stops reading: its kernel accepts what fits its buffers, and no more.
void a_peer_that_does_not_read_costs_no_time_and_fails() {
  stream::Loop b(brief(1));
  b.connect(0, "127.0.0.1", 1);
  Caller caller(b.port());
  caller.prove();
  Failure failure;
  CHECK(b.wait_connected(0, soon(), failure));
  std::vector<std::uint8_t> source(50'000'000, 9);
  std::uint64_t before = b.counters().wakes, out = b.send(0, sending(source, 1));
  auto sent = b.wait(out, soon());
  CHECK(sent && sent->failure == Failure::vanished);
  // One wake for each keepalive until then, and those of filling the buffers.
  CHECK(b.counters().wakes - before < 1000);
}

void idle_unauthenticated_sockets_do_not_block_a_handshake() {
  stream::LoopConfig first = config(0, false), second = config(1, false);
  first.connect_timeout = second.connect_timeout = 5 * kSecond;
  stream::Loop a(first), b(second);
  std::vector<int> strangers;
  for (int i = 0; i < 300; ++i) strangers.push_back(dial(b.port()));
  a.connect(1, "127.0.0.1", b.port());
  b.connect(0, "127.0.0.1", a.port());
  Failure failure;
  CHECK(a.wait_connected(1, soon(), failure));
  CHECK(b.wait_connected(0, soon(), failure));
  // One address has its share of sockets; the oldest were closed before their deadline.
  CHECK(b.counters().dropped >= 200);
  for (int fd : strangers) ::close(fd);
}

// A channel that gives what a script wrote, in pieces of any size, and takes everything.
class Script : public stream::Channel {
 public:
  std::vector<std::uint8_t> bytes;
  std::size_t at = 0, step = 7;
  std::ptrdiff_t write(std::span<const iovec> pieces) override {
    std::ptrdiff_t total = 0;
    for (auto& piece : pieces) total += static_cast<std::ptrdiff_t>(piece.iov_len);
    return total;
  }
  std::ptrdiff_t read(std::span<const iovec> pieces) override {
    if (at == bytes.size()) return -1;
    std::size_t part = std::min({step, bytes.size() - at, pieces[0].iov_len});
    std::memcpy(pieces[0].iov_base, bytes.data() + at, part);
    at += part;
    return static_cast<std::ptrdiff_t>(part);
  }
  int fd() const override { return -1; }
  bool polled_for_writable() const override { return true; }
  void describe(LinkStats&) override {}
};

// Well-formed and malformed frames in any order must end in a status, never in a wrong write.
void arbitrary_frames_never_cause_a_wrong_write() {
  int broken = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed);
    std::deque<Event> events;
    std::deque<stream::Frame> control;
    stream::Outbox out(1, events);
    stream::Inbox in(1, 5000, events, control);
    Script script;
    script.step = 1 + random.next() % 300;
    std::vector<std::uint8_t> source(3000, 1), target(2000);
    out.set_credit(1000);
    out.send(0, sending(source, 1));
    in.post(0, {1, target.data(), target.size(), 1, 0, 0}, true);
    std::uint64_t sent = 0;
    for (int i = 0; i < 12; ++i) {
      stream::Frame frame;
      frame.type = static_cast<stream::FrameType>(1 + random.next() % (random.next() % 8 ? 8 : 12));
      frame.flags = static_cast<std::uint8_t>(random.next() % 8 ? random.next() % 2 : random.next());
      bool carries = frame.type == stream::FrameType::open || frame.type == stream::FrameType::data;
      frame.length = static_cast<std::uint32_t>(carries || random.next() % 16 == 0 ? random.next() % 1500 : 0);
      frame.id = random.next() % 4 ? static_cast<std::uint64_t>(i) / 2 + 1 : random.next();
      frame.a = frame.type == stream::FrameType::data ? sent : random.next() % 3;
      frame.b = random.next() % 4 ? frame.length + random.next() % 1500 : random.next();
      if (frame.type == stream::FrameType::open) sent = 0;
      sent += frame.length;
      std::size_t at = script.bytes.size();
      script.bytes.resize(at + stream::kHeader + frame.length, 5);
      stream::write(MutableBytes(script.bytes).subspan(at, stream::kHeader), frame);
    }
    stream::Connection connection(script, out, in, control, std::nullopt);
    auto status = stream::Connection::Status::more;
    for (int turns = 0;
         turns < 20'000 && (status == stream::Connection::Status::more || status == stream::Connection::Status::idle);
         ++turns) {
      status = connection.receive(turns);
      connection.flush(turns);
      if (random.next() % 50 == 0) in.cancel(1);
      if (random.next() % 50 == 0) out.cancel(0);
    }
    broken += status == stream::Connection::Status::malformed;
    out.fail_all(Failure::closed);
    in.fail_all(Failure::closed);
  }
  CHECK(broken > 500);
}

// Numbers of a peer's own choosing, where ours are expected: no undefined arithmetic, and no round trip from them.
void a_pong_without_a_ping_is_not_a_round_trip() {
  for (std::uint64_t stamp : {std::uint64_t{1} << 63, ~std::uint64_t{0}, std::uint64_t{2'000}}) {
    std::deque<Event> events;
    std::deque<stream::Frame> control;
    stream::Outbox out(1, events);
    stream::Inbox in(1, 5000, events, control);
    Script script;
    script.bytes.resize(stream::kHeader);
    stream::write(script.bytes, {stream::FrameType::pong, 0, 0, 0, stamp, 0});
    stream::Connection connection(script, out, in, control, std::nullopt);
    while (connection.receive(1'000) == stream::Connection::Status::more) {
    }
    CHECK(connection.confirmed() && connection.rtt() == 0 && connection.best_rtt() == 0);
  }
}

// Every flipped bit of a sealed stream is detected.
void a_changed_byte_fails_authentication() {
  for (bool encrypt : {true, false})
    for (std::size_t flip = 0; flip < 2 * (stream::kHeader + 16) + 100 + 16; flip += 3) {
      stream::RecordKeys keys(Secret{1}, Aead::Direction::seal);
      Script script;
      script.step = 31;
      auto put = [&](const stream::Frame& frame, std::size_t payload) {
        std::uint8_t header[stream::kHeader], tag[16];
        stream::write(header, frame);
        keys.seal(header, header, tag, encrypt);
        script.bytes.insert(script.bytes.end(), header, header + sizeof header);
        script.bytes.insert(script.bytes.end(), tag, tag + 16);
        if (!payload) return;
        std::vector<std::uint8_t> text(payload, 4);
        keys.seal(text, text.data(), tag, encrypt);
        script.bytes.insert(script.bytes.end(), text.begin(), text.end());
        script.bytes.insert(script.bytes.end(), tag, tag + 16);
      };
      put({stream::FrameType::ping, 0, 0, 0, 1, 0}, 0);
      put({stream::FrameType::open, stream::kCharged, 100, 1, 9, 100}, 100);
      script.bytes[flip] ^= 1;
      std::deque<Event> events;
      std::deque<stream::Frame> control;
      stream::Outbox out(1, events);
      stream::Inbox in(1, 5000, events, control);
      stream::Connection connection(script, out, in, control, stream::Protection{Secret{2}, Secret{1}, encrypt});
      auto status = stream::Connection::Status::more;
      while (status == stream::Connection::Status::more) status = connection.receive(1);
      CHECK(status == stream::Connection::Status::forged);
    }
}

void several_threads_may_close_a_loop(bool local) {
  for (int round = 0; round < 20; ++round) {
    stream::Loop loop(config(0, local));
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        loop.close();
        CHECK(loop.stopped().has_value());
      });
    for (auto& thread : threads) thread.join();
  }
}

#ifndef __SANITIZE_ADDRESS__  // whose checks need descriptors themselves
// A process has few descriptors left: two for the sockets of a connection, none for its shared memory. Connecting is
// repeated until there are some; the loop continues, and with it every other peer.
void a_connection_without_descriptors_is_retried() {
  stream::Loop a(config(0, true)), b(config(1, true));
  rlimit usual{};
  ::getrlimit(RLIMIT_NOFILE, &usual);
  std::vector<Descriptor> lower;  // fill the gaps between descriptors in use
  for (int i = 0; i < 32; ++i) lower.emplace_back(::eventfd(0, EFD_CLOEXEC));
  rlimit tight = usual;
  tight.rlim_cur = static_cast<rlim_t>(lower.back().get()) + 3;
  ::setrlimit(RLIMIT_NOFILE, &tight);
  a.connect(1, "127.0.0.1", b.port());
  b.connect(0, "127.0.0.1", a.port());
  Failure failure;
  CHECK(!a.wait_connected(1, monotonic_now() + 300 * kMillisecond, failure));
  CHECK(!a.stopped() && !b.stopped());
  ::setrlimit(RLIMIT_NOFILE, &usual);
  CHECK(a.wait_connected(1, soon(), failure));
  CHECK(b.wait_connected(0, soon(), failure));
}
#endif

}  // namespace

int main() {
#ifndef __SANITIZE_ADDRESS__
  a_connection_without_descriptors_is_retried();
#endif
  for (bool local : {false, true}) several_threads_may_close_a_loop(local);
  a_replayed_hello_is_refused_and_breaks_no_handshake();
  the_first_candidate_with_a_sealed_frame_becomes_the_connection();
  candidates_beyond_the_limit_evict_the_oldest();
  idle_unauthenticated_sockets_do_not_block_a_handshake();
  a_changed_byte_fails_authentication();
  arbitrary_frames_never_cause_a_wrong_write();
  a_pong_without_a_ping_is_not_a_round_trip();
  unauthenticated_sockets_are_counted_and_dropped();
  a_candidate_without_a_frame_does_not_block_its_rank();
  a_candidate_that_stays_silent_fails_at_the_deadline();
  a_peer_that_does_not_read_costs_no_time_and_fails();
  for (bool local : {false, true}) {
    threads_share_a_loop(local, true);
    cancelled_buffers_are_never_used_again(local, true);
    closing_fails_pending_transfers(local);
  }
  threads_share_a_loop(false, false);
  cancelled_buffers_are_never_used_again(false, false);
  return gradwire::test::finish();
}
