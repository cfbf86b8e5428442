// The memory that the ranks of one group on one host share: who has come how far, what each called, and three slots of
// data per rank. It has no name and is gone with its processes. Other processes write into it: what is read is copied
// first and never used as an index.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "io/descriptor.h"
#include "ltp/time.h"

namespace gradwire::board {

constexpr std::size_t kHeader = 56;   // bytes of a call's description
constexpr std::size_t kEntries = 64;  // calls of a rank that can be looked up, the youngest
constexpr std::size_t kSlots = 3;
constexpr std::size_t kRanksMost = 256;

struct Shape {
  std::size_t ranks = 0, slot = 0;  // `slot`: bytes, a multiple of 4096
};

// A sealed memory file for a board of this shape.
io::Descriptor make_memory(Shape shape);

class Memory {
 public:
  // Throws std::runtime_error when the file is not one for this shape.
  Memory(int file, Shape shape);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::atomic<std::uint64_t>& phase(std::size_t rank) { return marks_[rank].phase; }
  std::uint8_t* slot(std::uint64_t phase, std::size_t rank) {
    return slots_ + ((phase % kSlots) * shape_.ranks + rank) * shape_.slot;
  }

  // Writes down what `rank` called as its `number`.
  void note(std::size_t rank, std::uint64_t number, const std::uint8_t* header);
  // What it called: 0 nothing yet, 1 in `header`, 2 it is further on and the note is gone.
  int look(std::size_t rank, std::uint64_t number, std::uint8_t* header) const;

  // Sleepers look again after a shout. Say that you sleep, look once more, then sleep.
  void shout();
  template <class Look>
  void sleep(ltp::Time deadline, Look look) {
    sleepers().fetch_add(1);
    std::uint32_t seen = shouts().load();
    if (!look()) doze(seen, deadline);
    sleepers().fetch_sub(1);
  }

 private:
  struct alignas(64) Mark {
    std::atomic<std::uint64_t> phase;
  };
  struct alignas(64) Entry {
    std::atomic<std::uint64_t> number;  // plus one; 0 while it is being written
    std::uint8_t header[kHeader];
  };
  struct alignas(64) Bell {
    std::atomic<std::uint32_t> shouts, sleepers;
  };
  friend io::Descriptor make_memory(Shape);
  static std::size_t bytes(Shape shape);
  std::atomic<std::uint32_t>& shouts() { return bell_->shouts; }
  std::atomic<std::uint32_t>& sleepers() { return bell_->sleepers; }
  void doze(std::uint32_t seen, ltp::Time deadline);

  Shape shape_;
  void* base_ = nullptr;
  Bell* bell_ = nullptr;
  Mark* marks_ = nullptr;
  Entry* entries_ = nullptr;
  std::uint8_t* slots_ = nullptr;
};

}  // namespace gradwire::board
