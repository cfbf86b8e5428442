// What a peer can make a stream hold is bounded by the credit it was given, overhead included. Counts every allocation.
#include <cstdlib>
#include <memory>
#include <new>

#include "stream/inbox.h"
#include "tests/check.h"

namespace {

constexpr std::size_t kPrefix = 16;  // keeps the alignment that operator new promises
std::size_t live = 0;

}  // namespace

void* operator new(std::size_t size) {
  auto* memory = static_cast<std::size_t*>(std::malloc(size + kPrefix));
  if (!memory) throw std::bad_alloc();
  *memory = size;
  live += size;
  return reinterpret_cast<char*>(memory) + kPrefix;
}
void operator delete(void* memory) noexcept {
  if (!memory) return;
  auto* begin = reinterpret_cast<std::size_t*>(static_cast<char*>(memory) - kPrefix);
  live -= *begin;
  std::free(begin);
}
void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }

using namespace gradwire;

namespace {

constexpr std::uint64_t kCredit = 200'000;

struct Box {
  std::deque<Event> events;
  std::deque<stream::Frame> control;
  stream::Inbox inbox{1, kCredit, events, control};

  bool open(std::uint64_t id, std::uint64_t tag, std::uint32_t length, std::uint64_t size) {
    if (!inbox.begin(0, {stream::FrameType::open, stream::kCharged, length, id, tag, size})) return false;
    if (length) inbox.target()[0] = 1, inbox.finish(0);
    return true;
  }
};

// The smallest messages, each with a tag of its own or all with one: the peer is stopped before memory exceeds the
// credit.
void small_messages_are_charged_their_memory(bool one_tag) {
  std::size_t before = live;
  auto box = std::make_unique<Box>();
  std::size_t empty = live;
  std::uint64_t count = 0;
  while (box->open(count + 1, one_tag ? 7 : count, 1, 1)) ++count;
  std::printf("%llu messages of one byte hold %zu bytes for a credit of %llu\n", static_cast<unsigned long long>(count),
              live - empty, static_cast<unsigned long long>(kCredit));
  CHECK(count >= 100);
  CHECK(live - empty <= kCredit);
  box.reset();
  CHECK(live == before);
}

}  // namespace

int main() {
  small_messages_are_charged_their_memory(false);
  small_messages_are_charged_their_memory(true);
  return gradwire::test::finish();
}
