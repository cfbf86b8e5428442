// A detached send continues from a copy: its buffer may be freed at any time, and the receiver gets what it was.
#include "tests/check.h"
#include "tests/requests.h"
#include "tests/world.h"

using namespace gradwire;
using namespace gradwire::ltp;
using namespace gradwire::ltp::test;

namespace {

// `after` is when the send is detached; the sanitizer finds any later read of its buffer.
void deliver(Time after, std::uint32_t tolerance, bool post_late, std::uint64_t seed) {
  World world(seed);
  PipeSpec spec;
  spec.loss = 0.05;
  Host& a = world.add(0);
  Host& b = world.add(1);
  world.link(0, 1, spec);
  world.connect(a, b);
  CHECK(world.run(20 * kSecond, [&] { return connected(a, 1) && connected(b, 0); }));
  auto original = random_bytes(600'001, seed);
  auto given = std::make_unique<std::vector<std::uint8_t>>(original);
  std::vector<std::uint8_t> destination(original.size(), 0xee);
  ReceiveRequest post{9, destination.data(), destination.size(), 42, 0, 0};
  if (!post_late) b.endpoint->post(world.now, 0, post);
  a.endpoint->send(world.now, 1, {7, given->data(), given->size(), 42, 1, 0, tolerance, {}, seed});
  world.run(after);
  a.endpoint->detach(1, 7);
  a.endpoint->detach(1, 7);
  given.reset();
  if (post_late) b.endpoint->post(world.now, 0, post);
  CHECK(world.run(60 * kSecond,
                  [&] { return find_event(a, EventType::sent, 7) && find_event(b, EventType::received, 9); }));
  const Event* received = find_event(b, EventType::received, 9);
  if (!received) return;
  for (const ByteRange& range : received->missing)
    std::fill_n(original.begin() + static_cast<std::ptrdiff_t>(range.offset), range.length, std::uint8_t{0});
  CHECK(destination == original);
  CHECK(find_event(a, EventType::sent, 7)->missing == received->missing);
}

void a_buffer_may_be_freed_at_any_time_after_detaching() {
  std::uint64_t seed = 1;
  for (Time after : {0, 1, 15, 30, 60, 100, 2000})
    for (std::uint32_t tolerance : {kWhole, 900'000u})
      for (bool late : {false, true}) deliver(after * kMillisecond, tolerance, late, seed++);
}

void a_send_is_detached_before_the_connection_exists() {
  World world(5);
  Host& a = world.add(0);
  Host& b = world.add(1);
  world.link(0, 1, PipeSpec{});
  world.connect(a, b);
  auto original = random_bytes(50'000, 3);
  auto given = std::make_unique<std::vector<std::uint8_t>>(original);
  std::vector<std::uint8_t> destination(original.size());
  a.endpoint->send(world.now, 1, gradwire::test::sending(*given, 42, 7));
  a.endpoint->detach(1, 7);
  a.endpoint->detach(1, 8);
  a.endpoint->detach(2, 7);
  given.reset();
  b.endpoint->post(world.now, 0, {9, destination.data(), destination.size(), 42, 0, 0});
  CHECK(world.run(20 * kSecond, [&] { return find_event(b, EventType::received, 9) != nullptr; }));
  CHECK(destination == original);
}

}  // namespace

int main() {
  a_buffer_may_be_freed_at_any_time_after_detaching();
  a_send_is_detached_before_the_connection_exists();
  return gradwire::test::finish();
}
