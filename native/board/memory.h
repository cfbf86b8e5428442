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
constexpr std::size_t kCalls = 64;    // calls of a rank over the wire that can be looked up, the youngest
constexpr std::size_t kSums = 2;      // sums of a rank: it can be one ahead of whoever still looks, not two
constexpr std::size_t kSlots = 3;
constexpr std::size_t kRanksMost = 256;

struct Shape {
  std::size_t ranks = 0, slot = 0;  // `slot`: bytes, a multiple of 4096
};

// What a rank called, and how many sums on the board it had asked for by then.
struct Note {
  std::uint64_t sums = 0;
  std::uint8_t header[kHeader] = {};
};

// `younger`: the rank is further on, and that note took the place of the one looked for.
enum class Found { nothing, note, younger };

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

  // What `rank` calls over the wire as its `number`, and what it calls here as its sum `turn`.
  void note_call(std::size_t rank, std::uint64_t number, const Note& note) { write(call(rank, number), number, note); }
  void note_sum(std::size_t rank, std::uint64_t turn, const Note& note) { write(sum(rank, turn), turn, note); }
  Found look_call(std::size_t rank, std::uint64_t number, Note& note) const { return read(call(rank, number), number, note); }
  Found look_sum(std::size_t rank, std::uint64_t turn, Note& note) const { return read(sum(rank, turn), turn, note); }

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
    std::atomic<std::uint64_t> index;  // plus one; 0 while it is being written
    Note note;
  };
  struct alignas(64) Bell {
    std::atomic<std::uint32_t> shouts, sleepers;
  };
  friend io::Descriptor make_memory(Shape);
  static std::size_t bytes(Shape shape);
  Entry& call(std::size_t rank, std::uint64_t number) const { return calls_[rank * kCalls + number % kCalls]; }
  Entry& sum(std::size_t rank, std::uint64_t turn) const { return sums_[rank * kSums + turn % kSums]; }
  static void write(Entry& entry, std::uint64_t index, const Note& note);
  static Found read(const Entry& entry, std::uint64_t index, Note& note);
  std::atomic<std::uint32_t>& shouts() { return bell_->shouts; }
  std::atomic<std::uint32_t>& sleepers() { return bell_->sleepers; }
  void doze(std::uint32_t seen, ltp::Time deadline);

  Shape shape_;
  void* base_ = nullptr;
  Bell* bell_ = nullptr;
  Mark* marks_ = nullptr;
  Entry* calls_ = nullptr;
  Entry* sums_ = nullptr;
  std::uint8_t* slots_ = nullptr;
};

}  // namespace gradwire::board
