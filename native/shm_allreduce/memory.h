// Memory: shared memory of the ranks of one group on one host: each rank's phase, its calls, and three slots of data
// per rank. It is anonymous and disappears with its processes. Other processes write into it: values are copied before
// use and never used as an index.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/descriptor.h"
#include "core/time.h"

namespace gradwire::shm_allreduce {

constexpr std::size_t kHeader = 56;  // bytes of a call's description
constexpr std::size_t kCalls = 64;   // calls of a rank over the wire that can be looked up, the newest
constexpr std::size_t kSums = 2;     // sums of a rank: it can be one ahead of a rank that still reads, not two
constexpr std::size_t kSlots = 3;
constexpr std::size_t kRanksMost = 256;

struct Shape {
  std::size_t ranks = 0, slot = 0;  // `slot`: bytes, a multiple of 4096
};

// One call of a rank, and how many sums through this memory it had started by then.
struct CallRecord {
  std::uint64_t sums = 0;
  std::uint8_t header[kHeader] = {};
};

// `newer`: the rank is further on, and its entry has replaced the one looked for.
enum class Found { none, exact, newer };

// A sealed memory file for this shape.
Descriptor make_memory(Shape shape);

class Memory {
 public:
  // Throws std::runtime_error when the file is not one for this shape.
  Memory(int file, Shape shape);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::atomic<std::uint64_t>& phase(std::size_t rank) { return progress_[rank].phase; }
  std::uint8_t* slot(std::uint64_t phase, std::size_t rank) {
    return slots_ + ((phase % kSlots) * shape_.ranks + rank) * shape_.slot;
  }

  // Call `number` of `rank` over the wire, and its sum `turn` through this memory.
  void record_call(std::size_t rank, std::uint64_t number, const CallRecord& note) {
    write(call(rank, number), number, note);
  }
  void record_sum(std::size_t rank, std::uint64_t turn, const CallRecord& note) { write(sum(rank, turn), turn, note); }
  Found find_call(std::size_t rank, std::uint64_t number, CallRecord& note) const {
    return read(call(rank, number), number, note);
  }
  Found find_sum(std::size_t rank, std::uint64_t turn, CallRecord& note) const {
    return read(sum(rank, turn), turn, note);
  }

  // Sleepers check again after wake_all(). Order: register as sleeper, check once more, then sleep.
  void wake_all();
  template <class Ready>
  void sleep(Time deadline, Ready ready) {
    sleepers().fetch_add(1);
    std::uint32_t seen = wakeups().load();
    if (!ready()) futex_wait(seen, deadline);
    sleepers().fetch_sub(1);
  }

 private:
  struct alignas(64) Progress {
    std::atomic<std::uint64_t> phase;
  };
  struct alignas(64) Entry {
    std::atomic<std::uint64_t> index;  // plus one; 0 while it is being written
    CallRecord note;
  };
  struct alignas(64) WakeWord {
    std::atomic<std::uint32_t> wakeups, sleepers;
  };
  friend Descriptor make_memory(Shape);
  static std::size_t bytes(Shape shape);
  Entry& call(std::size_t rank, std::uint64_t number) const { return calls_[rank * kCalls + number % kCalls]; }
  Entry& sum(std::size_t rank, std::uint64_t turn) const { return sums_[rank * kSums + turn % kSums]; }
  static void write(Entry& entry, std::uint64_t index, const CallRecord& note);
  static Found read(const Entry& entry, std::uint64_t index, CallRecord& note);
  std::atomic<std::uint32_t>& wakeups() { return wake_word_->wakeups; }
  std::atomic<std::uint32_t>& sleepers() { return wake_word_->sleepers; }
  void futex_wait(std::uint32_t seen, Time deadline);

  Shape shape_;
  void* base_ = nullptr;
  WakeWord* wake_word_ = nullptr;
  Progress* progress_ = nullptr;
  Entry* calls_ = nullptr;
  Entry* sums_ = nullptr;
  std::uint8_t* slots_ = nullptr;
};

}  // namespace gradwire::shm_allreduce
