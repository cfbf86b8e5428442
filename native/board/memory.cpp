#include "board/memory.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <system_error>

#include "io/loop.h"

namespace gradwire::board {
namespace {

constexpr std::size_t kPage = 4096;

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

std::size_t pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

std::size_t Memory::bytes(Shape shape) {
  if (shape.ranks < 2 || shape.ranks > kRanksMost || shape.slot == 0 || shape.slot % kPage || shape.slot > (64u << 20))
    throw std::runtime_error("a board has 2 to 256 ranks and slots of whole pages");
  std::size_t heads = sizeof(Bell) + shape.ranks * (sizeof(Mark) + (kCalls + kSums) * sizeof(Entry));
  return pages(heads) + kSlots * shape.ranks * shape.slot;
}

io::Descriptor make_memory(Shape shape) {
  io::Descriptor file(::memfd_create("gradwire", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.get() < 0) fail("memfd_create");
  if (::ftruncate(file.get(), static_cast<off_t>(Memory::bytes(shape))) < 0) fail("ftruncate");
  if (::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) fail("sealing shared memory");
  return file;
}

Memory::Memory(int file, Shape shape) : shape_(shape) {
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);
  std::size_t size = bytes(shape);
  struct stat status;
  int seals = ::fcntl(file, F_GET_SEALS);
  // Without the seal its maker could take pages away under our feet.
  if (seals < 0 || !(seals & F_SEAL_SHRINK) || ::fstat(file, &status) < 0 ||
      static_cast<std::size_t>(status.st_size) != size)
    throw std::runtime_error("shared memory is not a sealed memory file of the right size");
  base_ = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (base_ == MAP_FAILED) fail("mmap");
  auto* at = static_cast<std::uint8_t*>(base_);
  bell_ = reinterpret_cast<Bell*>(at);
  marks_ = reinterpret_cast<Mark*>(at + sizeof(Bell));
  calls_ = reinterpret_cast<Entry*>(at + sizeof(Bell) + shape.ranks * sizeof(Mark));
  sums_ = calls_ + shape.ranks * kCalls;
  slots_ = at + size - kSlots * shape.ranks * shape.slot;
}

Memory::~Memory() { ::munmap(base_, bytes(shape_)); }

void Memory::write(Entry& entry, std::uint64_t index, const Note& note) {
  entry.index.store(0, std::memory_order_seq_cst);
  std::memcpy(&entry.note, &note, sizeof note);
  entry.index.store(index + 1, std::memory_order_seq_cst);
}

Found Memory::read(const Entry& entry, std::uint64_t index, Note& note) {
  std::uint64_t before = entry.index.load(std::memory_order_acquire);
  if (before < index + 1) return Found::nothing;
  std::memcpy(&note, &entry.note, sizeof note);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (entry.index.load(std::memory_order_relaxed) != before) return Found::nothing;  // being written: a shout follows
  return before == index + 1 ? Found::note : Found::younger;
}

void Memory::shout() {
  shouts().fetch_add(1);
  if (sleepers().load()) ::syscall(SYS_futex, &bell_->shouts, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Memory::doze(std::uint32_t seen, ltp::Time deadline) {
  ltp::Time left = std::clamp<ltp::Time>(deadline - io::monotonic_now(), 0, ltp::kSecond);
  timespec limit{static_cast<time_t>(left / ltp::kSecond), static_cast<long>(left % ltp::kSecond)};
  ::syscall(SYS_futex, &bell_->shouts, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

}  // namespace gradwire::board
