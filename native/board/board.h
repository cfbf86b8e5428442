// Sums between the ranks of one host, through memory that all of them see. One thread of a rank works on it at a time.
//
// A sum moves in phases; a rank works, says that it has done phase p, and waits until all have.
//   direct    phase i: copy chunk i into the own slot. Then add up all ranks' chunk i: everybody reads everything.
//   sharded   phase i: copy chunk i into the own slot and add up the own share of chunk i - 1. Then copy the other
//             shares of chunk i - 1 from their owners' slots: everybody reads every byte about twice, whatever W.
// Slots are used in turn, three of them, so that nobody writes where another may still read (docs/backend.md).
#pragma once
#include <cstdint>
#include <vector>

#include "board/add.h"
#include "board/memory.h"

namespace gradwire::board {

enum class Status { waiting, done, differs, fold };

struct Sum {
  std::uint8_t* data = nullptr;
  std::size_t bytes = 0, item = 1;
  Kind kind = Kind::caller;
  bool sharded = false;
};

// What the caller adds up: `bytes` at `offset` of the data, from every rank's slot at `place`.
struct Fold {
  std::uint64_t phase = 0;
  std::size_t offset = 0, place = 0, bytes = 0;
};

class Board {
 public:
  Board(int file, Shape shape, std::size_t rank, ltp::Time spin);

  // This rank's call `number` goes another way: whoever waits for it here hears of that. `sums`: how many sums it had
  // asked for before, or more; they may still have to begin.
  void announce(std::uint64_t number, std::uint64_t sums, const std::uint8_t* header);
  // Call `number` goes over the board; `data` is touched only inside step().
  void begin(std::uint64_t number, const std::uint8_t* header, const Sum& sum);
  // Works and waits until the deadline. `fold`: do what folding() says, then call folded() and step() again.
  Status step(ltp::Time deadline);
  Fold folding() const;
  void folded() { folded_ = true; }
  const std::uint8_t* slot(std::uint64_t phase, std::size_t rank) { return memory_.slot(phase, rank); }

  // Ranks that have not come as far as this one.
  std::vector<std::size_t> missing();
  // After `differs`: who called something else, and what; empty when that is forgotten.
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
  Status wait(ltp::Time deadline);
  bool arrived();
  bool differs();

  Shape shape_;
  Memory memory_;
  std::size_t rank_;
  ltp::Time spin_;

  Sum sum_;
  std::uint64_t number_ = 0, turn_ = 0, begun_ = 0;  // its place among all calls and among the sums here; sums so far
  Note note_;
  Stage stage_ = Stage::copy;
  std::uint64_t base_ = 0, index_ = 0, chunks_ = 0, phases_ = 0;  // of the sum under way
  bool folded_ = false;
  std::size_t odd_ = 0;
  std::vector<std::uint8_t> odd_header_;
};

}  // namespace gradwire::board
