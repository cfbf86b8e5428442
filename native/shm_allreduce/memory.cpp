#include "shm_allreduce/memory.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <ctime>
#include <stdexcept>

namespace gradwire::shm_allreduce {
namespace {

constexpr std::size_t kPage = 4096;

std::size_t pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

std::size_t Memory::bytes(Shape shape) {
  if (shape.ranks < 2 || shape.ranks > kRanksMost || shape.slot == 0 || shape.slot % kPage || shape.slot > (64u << 20))
    throw std::runtime_error(
        "shared memory for sums needs 2 to 256 ranks and slots of whole pages (4096 bytes), at most 64 MiB");
  std::size_t heads = sizeof(WakeWord) + shape.ranks * (sizeof(Progress) + (kCalls + kSums) * sizeof(Entry));
  return pages(heads) + kSlots * shape.ranks * shape.slot;
}

Descriptor make_memory(Shape shape) { return make_sealed_memory(Memory::bytes(shape)); }

Memory::Memory(int file, Shape shape) : shape_(shape) {
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);
  std::size_t size = bytes(shape);
  std::size_t found = 0;
  if (!is_sealed_memory(file, found) || found != size)
    throw std::runtime_error("shared memory is not a sealed memory file of the right size");
  base_ = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (base_ == MAP_FAILED) throw_errno("mmap");
  auto* at = static_cast<std::uint8_t*>(base_);
  wake_word_ = reinterpret_cast<WakeWord*>(at);
  progress_ = reinterpret_cast<Progress*>(at + sizeof(WakeWord));
  calls_ = reinterpret_cast<Entry*>(at + sizeof(WakeWord) + shape.ranks * sizeof(Progress));
  sums_ = calls_ + shape.ranks * kCalls;
  slots_ = at + size - kSlots * shape.ranks * shape.slot;
}

Memory::~Memory() { ::munmap(base_, bytes(shape_)); }

void Memory::write(Entry& entry, std::uint64_t index, const CallRecord& note) {
  entry.index.store(0, std::memory_order_seq_cst);
  std::memcpy(&entry.note, &note, sizeof note);
  entry.index.store(index + 1, std::memory_order_seq_cst);
}

Found Memory::read(const Entry& entry, std::uint64_t index, CallRecord& note) {
  std::uint64_t before = entry.index.load(std::memory_order_acquire);
  if (before < index + 1) return Found::none;
  std::memcpy(&note, &entry.note, sizeof note);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (entry.index.load(std::memory_order_relaxed) != before) return Found::none;  // being written: wake_all() follows
  return before == index + 1 ? Found::exact : Found::newer;
}

void Memory::wake_all() {
  wakeups().fetch_add(1);
  if (sleepers().load()) ::syscall(SYS_futex, &wake_word_->wakeups, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Memory::futex_wait(std::uint32_t seen, Time deadline) {
  Time left = std::clamp<Time>(deadline - monotonic_now(), 0, kSecond);
  timespec limit{static_cast<time_t>(left / kSecond), static_cast<long>(left % kSecond)};
  ::syscall(SYS_futex, &wake_word_->wakeups, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

}  // namespace gradwire::shm_allreduce
