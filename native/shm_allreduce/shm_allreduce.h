// ShmAllreduce: sums between the ranks of one host through shared memory. One thread of a rank uses it at a time.
//
// A sum has phases; a rank does its work of phase p, publishes that, and waits until all ranks have.
//   direct    phase i: copy chunk i into the own slot. Then add up all ranks' chunk i: every rank reads everything.
//   sharded   phase i: copy chunk i into the own slot and add up the own share of chunk i - 1. Then copy the other
//             shares of chunk i - 1 from their owners' slots: every rank reads every byte about twice, for any W.
// Three slots are used in turn, so that no rank writes where another may still read (docs/backend.md).
#pragma once
#include <cstdint>
#include <vector>

#include "shm_allreduce/add.h"
#include "shm_allreduce/memory.h"

namespace gradwire::shm_allreduce {

enum class Status { waiting, done, differs, fold };

struct Sum {
  std::uint8_t* data = nullptr;
  std::size_t bytes = 0, item = 1;
  Kind kind = Kind::caller;
  bool sharded = false;
};

// What the caller reduces: `bytes` at `offset` of the data, from every rank's slot at `place`.
struct Fold {
  std::uint64_t phase = 0;
  std::size_t offset = 0, place = 0, bytes = 0;
};

class ShmAllreduce {
 public:
  ShmAllreduce(int file, Shape shape, std::size_t rank, Time spin);

  // This rank's call `number` goes over the wire: ranks that wait for it here are informed. `sums`: how many sums it
  // had requested before, or more; some may not have begun.
  void announce(std::uint64_t number, std::uint64_t sums, const std::uint8_t* header);
  // Call `number` goes through this memory; `data` is used only inside step().
  void begin(std::uint64_t number, const std::uint8_t* header, const Sum& sum);
  // Works and waits until the deadline. `fold`: do what folding() says, then call folded() and step() again.
  Status step(Time deadline);
  Fold folding() const;
  void folded() { folded_ = true; }
  const std::uint8_t* slot(std::uint64_t phase, std::size_t rank) { return memory_.slot(phase, rank); }

  // Ranks that have not reached this rank's phase.
  std::vector<std::size_t> missing();
  // After `differs`: the rank that called something else, and its header; empty when that is no longer stored.
  std::size_t odd_rank() const { return odd_; }
  std::vector<std::uint8_t> odd_header() const { return odd_header_; }

 private:
  enum class Stage { copy, early, publish, wait, late };
  struct Range {
    std::size_t begin = 0, size = 0;
  };
  Range chunk(std::uint64_t index) const;
  Range share(std::uint64_t index, std::size_t rank) const;
  void copy_in();
  void copy_out();
  bool reduce(bool early);
  void publish();
  Status wait(Time deadline);
  bool arrived();
  bool differs();

  Shape shape_;
  Memory memory_;
  std::size_t rank_;
  Time spin_;

  Sum sum_;
  std::uint64_t number_ = 0, turn_ = 0, begun_ = 0;  // index among all calls and among the sums here; sums so far
  CallRecord record_;
  Stage stage_ = Stage::copy;
  std::uint64_t base_ = 0, index_ = 0, chunks_ = 0, phases_ = 0;  // of the current sum
  bool folded_ = false;
  std::size_t odd_ = 0;
  std::vector<std::uint8_t> odd_header_;
};

}  // namespace gradwire::shm_allreduce
