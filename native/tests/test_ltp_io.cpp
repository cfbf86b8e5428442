// Event loops on loopback, driven from several threads: results, cancellation, closing with work in progress. Built
// with the address and undefined-behaviour sanitizers, and once more with the thread sanitizer.
#include "core/random.h"
#include "ltp_io/loop.h"
#include "tests/check.h"

#include <atomic>

using namespace gradwire;

namespace {

constexpr Time kLimit = 60 * kSecond;

ltp_io::LoopConfig config(std::uint32_t rank, const char* host) {
  ltp_io::LoopConfig config;
  config.self = {rank, 100 + rank};
  config.secret.assign(32, 7);
  config.host = host;
  return config;
}

Time soon() { return monotonic_now() + kLimit; }

struct Two {
  explicit Two(const char* host) : a(config(0, host)), b(config(1, host)) {
    a.connect(1, parse_address(host, b.port()));
    b.connect(0, parse_address(host, a.port()));
    Failure failure;
    CHECK(a.wait_connected(1, soon(), failure));
    CHECK(b.wait_connected(0, soon(), failure));
  }
  ltp_io::Loop a, b;
};

SendRequest sending(const std::vector<std::uint8_t>& bytes, std::uint64_t tag) {
  SendRequest request;
  request.data = bytes.data();
  request.size = bytes.size();
  request.tag = tag;
  request.element = 1;
  request.seed = tag;
  return request;
}

void threads_share_a_loop(const char* host) {
  Two two(host);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      Random random(t);
      for (std::uint64_t round = 0; round < 10; ++round) {
        std::vector<std::uint8_t> source(1 + random.next() % 200'000), target(source.size());
        for (auto& byte : source) byte = static_cast<std::uint8_t>(random.next());
        ltp_io::Loop& from = t % 2 ? two.a : two.b;
        ltp_io::Loop& to = t % 2 ? two.b : two.a;
        std::uint64_t tag = t * 100 + round;
        std::uint64_t in = to.receive(t % 2 ? 0 : 1, {0, target.data(), target.size(), tag, 0, 0});
        std::uint64_t out = from.send(t % 2 ? 1 : 0, sending(source, tag));
        auto received = to.wait(in, soon());
        auto sent = from.wait(out, soon());
        if (!received) to.cancel(t % 2 ? 0 : 1, in);  // or the loop would write to freed memory
        if (!sent) from.cancel(t % 2 ? 1 : 0, out);
        if (!received || !sent || received->arrived != source.size() || source != target) ++wrong;
        from.stats();
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
  ltp_io::Stats stats = two.a.stats();
  CHECK(stats.links.at(1).counters.bytes_acked > 0);
  CHECK(stats.socket.datagrams_sent > 0);
}

void a_cancelled_receive_is_never_written_again() {
  Two two("127.0.0.1");
  std::vector<std::uint8_t> source(20'000'000, 9);
  std::uint64_t out = two.a.send(1, sending(source, 1));
  for (int i = 0; i < 20; ++i) {
    auto target = std::make_unique<std::vector<std::uint8_t>>(source.size());
    std::uint64_t in = two.b.receive(0, {0, target->data(), target->size(), 1, 0, 0});
    if (i % 2) std::this_thread::yield();
    // The address sanitizer would see a write after this line.
    bool finished = two.b.cancel(0, in).has_value();
    target.reset();
    if (finished || two.a.wait(out, monotonic_now())) break;
  }
}

void closing_fails_pending_transfers() {
  auto two = std::make_unique<Two>("127.0.0.1");
  std::vector<std::uint8_t> source(50'000'000, 9), target(source.size());
  std::uint64_t out = two->a.send(1, sending(source, 1));
  two->b.close();
  auto sent = two->a.wait(out, soon());
  CHECK(sent && sent->failure == Failure::closed);
  std::uint64_t in = two->a.receive(1, {0, target.data(), target.size(), 1, 0, 0});
  two->a.close();
  two->a.wait(in, soon());
  two->a.close();
}

void addresses_are_parsed_and_formatted() {
  CHECK(format_address(parse_address("10.1.2.3", 80)) == "10.1.2.3:80");
  CHECK(format_address(parse_address("fe80::1", 80)) == "[fe80::1]:80");
  bool refused = false;
  try {
    parse_address("example", 1);
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  CHECK(refused);
}

// Every close returns when the thread is gone, however many there are at once.
void several_threads_may_close_a_loop() {
  for (int round = 0; round < 20; ++round) {
    ltp_io::Loop loop(config(0, "127.0.0.1"));
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        loop.close();
        CHECK(loop.stopped().has_value());
      });
    for (auto& thread : threads) thread.join();
  }
}

// Each needs its command to be run, not a system call of its own: the thread is woken only when it sleeps.
void a_burst_of_commands_wakes_the_thread_a_few_times() {
  ltp_io::Loop loop(config(0, "127.0.0.1"));
  loop.connect(1, parse_address("127.0.0.1", 9));
  constexpr int kCommands = 2000;
  std::vector<std::uint8_t> target(1);
  std::vector<std::uint64_t> tokens;
  for (int i = 0; i < kCommands; ++i) tokens.push_back(loop.receive(1, {0, target.data(), 1, 1, 0, 0}));
  CHECK(loop.stats().wakes < kCommands / 2);
  // While asleep it is woken: no command waits.
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(i % 3));
    loop.cancel(1, tokens[static_cast<std::size_t>(i)]);
  }
}

}  // namespace

int main() {
  several_threads_may_close_a_loop();
  a_burst_of_commands_wakes_the_thread_a_few_times();
  threads_share_a_loop("127.0.0.1");
  threads_share_a_loop("::1");
  a_cancelled_receive_is_never_written_again();
  closing_fails_pending_transfers();
  addresses_are_parsed_and_formatted();
  return gradwire::test::finish();
}
