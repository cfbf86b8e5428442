// Sums through shared memory between threads that represent processes: each has its own mapping of the same memory.
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>

#include "core/random.h"
#include "ltp_io/loop.h"
#include "shm_allreduce/shm_allreduce.h"
#include "tests/check.h"

using namespace gradwire;
using shm_allreduce::Kind;
using shm_allreduce::ShmAllreduce;
using shm_allreduce::Status;

namespace {

constexpr std::size_t kSlot = 4096;

std::vector<std::uint8_t> header(std::uint8_t fill) { return std::vector<std::uint8_t>(shm_allreduce::kHeader, fill); }
Time in(Time delay) { return monotonic_now() + delay; }

struct World {
  explicit World(std::size_t ranks) : file(shm_allreduce::make_memory({ranks, kSlot})) {
    for (std::size_t rank = 0; rank < ranks; ++rank)
      parts.push_back(
          std::make_unique<ShmAllreduce>(file.get(), shm_allreduce::Shape{ranks, kSlot}, rank, 20 * kMicrosecond));
  }
  template <class Work>
  void on_all(Work work) {
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < parts.size(); ++rank)
      threads.emplace_back([&, rank] { work(rank, *parts[rank]); });
    for (auto& thread : threads) thread.join();
  }
  Descriptor file;
  std::vector<std::unique_ptr<ShmAllreduce>> parts;
};

template <class T>
void reduce_here(ShmAllreduce& b, std::size_t ranks, T* data) {
  shm_allreduce::Fold fold = b.folding();
  for (std::size_t i = 0; i < fold.bytes / sizeof(T); ++i) {
    T total = 0;
    for (std::size_t r = 0; r < ranks; ++r) {
      T one;
      std::memcpy(&one, b.slot(fold.phase, r) + fold.place + i * sizeof(T), sizeof one);
      total = static_cast<T>(total + one);
    }
    std::memcpy(reinterpret_cast<std::uint8_t*>(data) + fold.offset + i * sizeof(T), &total, sizeof total);
  }
  b.folded();
}

// Many sums in a row, of sizes around one and several slots, direct and in shares, added here and by the caller.
template <class T>
void every_sum_is_right(std::size_t ranks, Kind kind) {
  World world(ranks);
  std::atomic<int> wrong = 0;
  world.on_all([&](std::size_t rank, ShmAllreduce& b) {
    Random random(5), own(rank);  // the first is the same on every rank
    for (std::uint64_t number = 0; number < 60; ++number) {
      std::size_t count = random.next() % (4 * kSlot / sizeof(T));
      bool sharded = random.next() % 2, here = random.next() % 3;
      std::vector<T> data(count);
      for (std::size_t i = 0; i < count; ++i) data[i] = static_cast<T>(i % 50 + rank * number % 7);
      b.begin(number, header(1).data(),
              {reinterpret_cast<std::uint8_t*>(data.data()), count * sizeof(T), sizeof(T), here ? kind : Kind::caller,
               sharded});
      Status status = Status::waiting;
      while (status != Status::done && status != Status::differs) {
        status = b.step(in(own.next() % 2 * kMillisecond));
        if (status == Status::fold) reduce_here(b, ranks, data.data());
      }
      if (status != Status::done) ++wrong;
      for (std::size_t i = 0; i < count; ++i) {
        T total = 0;
        for (std::size_t r = 0; r < ranks; ++r) total = static_cast<T>(total + static_cast<T>(i % 50 + r * number % 7));
        if (data[i] != total) ++wrong;
      }
    }
  });
  CHECK(wrong == 0);
}

void missing_ranks_are_reported() {
  World world(3);
  std::uint8_t data[8] = {};
  world.parts[0]->begin(0, header(1).data(), {data, 8, 1, Kind::int8, false});
  world.parts[2]->announce(5, 0, header(9).data());
  CHECK(world.parts[0]->step(in(kMillisecond)) == Status::waiting);
  CHECK((world.parts[0]->missing() == std::vector<std::size_t>{1, 2}));
}

void a_rank_with_another_call_is_reported() {
  World world(2);
  std::uint8_t data[8] = {};
  world.on_all([&](std::size_t rank, ShmAllreduce& b) {
    if (rank == 0) return b.announce(7, 0, header(9).data());  // over the wire; wakes the sleeper
    b.begin(7, header(1).data(), {data, 8, 1, Kind::int8, false});
    CHECK(b.step(in(20 * kSecond)) == Status::differs);
    CHECK(b.odd_rank() == 0 && b.odd_header() == header(9));
  });
  World other(2);
  other.on_all([&](std::size_t rank, ShmAllreduce& b) {
    std::uint8_t own[8] = {};
    b.begin(7, header(static_cast<std::uint8_t>(rank)).data(), {own, 8 - rank, 1, Kind::int8, false});
    CHECK(b.step(in(20 * kSecond)) == Status::differs);
    CHECK(b.odd_header() == header(static_cast<std::uint8_t>(1 - rank)));
  });
}

// A rank that is further on: its call is no longer stored, but the difference is detected.
void an_overwritten_call_record_differs() {
  World world(2);
  std::uint8_t data[8] = {};
  world.parts[1]->announce(3 + shm_allreduce::kCalls, 0, header(9).data());
  world.parts[0]->begin(3, header(1).data(), {data, 8, 1, Kind::int8, false});
  CHECK(world.parts[0]->step(in(20 * kSecond)) == Status::differs);
  CHECK(world.parts[0]->odd_rank() == 1 && world.parts[0]->odd_header().empty());
}

// A rank may finish a sum and make many calls over the wire before another checks whether they agreed.
void a_rank_that_is_further_on_still_agrees() {
  World world(2);
  ShmAllreduce &slow = *world.parts[0], &quick = *world.parts[1];
  std::uint8_t data[2] = {1, 2};
  slow.begin(0, header(1).data(), {&data[0], 1, 1, Kind::int8, false});
  CHECK(slow.step(in(0)) == Status::waiting);
  quick.begin(0, header(1).data(), {&data[1], 1, 1, Kind::int8, false});
  CHECK(quick.step(in(0)) == Status::done);
  // Sum 1 is requested, too, and begins when its rank has checked.
  for (std::uint64_t number = 2; number <= 1 + shm_allreduce::kCalls; ++number)
    quick.announce(number, 2, header(9).data());
  CHECK(slow.step(in(0)) == Status::done);
  slow.begin(1, header(1).data(), {&data[0], 1, 1, Kind::int8, false});
  CHECK(slow.step(in(kMillisecond)) == Status::waiting);
  quick.begin(1, header(1).data(), {&data[1], 1, 1, Kind::int8, false});
  CHECK(quick.step(in(0)) == Status::done && slow.step(in(0)) == Status::done);
  CHECK(data[0] == 6 && data[1] == 6);
}

// Its sum has this index, but another call number.
void a_rank_that_skipped_a_call_differs() {
  World world(2);
  std::uint8_t data[8] = {};
  world.parts[1]->announce(0, 0, header(9).data());
  world.parts[1]->begin(1, header(2).data(), {data, 8, 1, Kind::int8, false});
  CHECK(world.parts[1]->step(in(0)) == Status::waiting);
  world.parts[0]->begin(0, header(1).data(), {data, 8, 1, Kind::int8, false});
  CHECK(world.parts[0]->step(in(0)) == Status::differs);
  CHECK(world.parts[0]->odd_header() == header(9));
  CHECK(world.parts[1]->step(in(0)) == Status::differs);
  CHECK(world.parts[1]->odd_header() == header(1));
}

template <class Make>
bool refused(Make make) {
  try {
    make();
  } catch (const std::runtime_error&) {
    return true;
  }
  return false;
}

void memory_of_a_wrong_size_or_without_seals_is_rejected() {
  Descriptor file = shm_allreduce::make_memory({3, kSlot});
  CHECK(refused([&] { ShmAllreduce(file.get(), {2, kSlot}, 0, 0); }));
  CHECK(refused([&] { ShmAllreduce(file.get(), {3, kSlot}, 3, 0); }));
  CHECK(refused([&] { shm_allreduce::make_memory({1, kSlot}); }));
  CHECK(refused([&] { shm_allreduce::make_memory({2, 100}); }));
  Descriptor open(::memfd_create("open", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  CHECK(refused([&] { ShmAllreduce(open.get(), {2, kSlot}, 0, 0); }));
}

}  // namespace

int main() {
  for (std::size_t ranks : {2u, 3u, 5u}) {
    every_sum_is_right<float>(ranks, Kind::float32);
    every_sum_is_right<double>(ranks, Kind::float64);
    every_sum_is_right<std::int8_t>(ranks, Kind::int8);
    every_sum_is_right<std::int16_t>(ranks, Kind::int16);
    every_sum_is_right<std::int32_t>(ranks, Kind::int32);
    every_sum_is_right<std::int64_t>(ranks, Kind::int64);
  }
  missing_ranks_are_reported();
  a_rank_with_another_call_is_reported();
  an_overwritten_call_record_differs();
  a_rank_that_is_further_on_still_agrees();
  a_rank_that_skipped_a_call_differs();
  memory_of_a_wrong_size_or_without_seals_is_rejected();
  return test::finish();
}
