#include "stream/ring_channel.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "core/random.h"

namespace gradwire::stream {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kLeast = 4096, kMost = 64u << 20;
// The reader starts on a slice while the writer copies the next.
constexpr std::size_t kSlice = 64u << 10;

socklen_t local_name(std::uint16_t port, sockaddr_un& name) {
  std::memset(&name, 0, sizeof name);
  name.sun_family = AF_UNIX;
  std::string text = "gradwire-shm-" + std::to_string(port);
  // A leading zero byte: a name in the network namespace, not in the file system.
  std::memcpy(name.sun_path + 1, text.data(), text.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
}

Descriptor open_local() { return checked(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), "socket"); }

std::uint16_t random_port() {
  std::uint16_t port = 0;
  while (port < 1024) fill_random({reinterpret_cast<std::uint8_t*>(&port), sizeof port});
  return port;
}

}  // namespace

struct RingChannel::Shared {
  struct alignas(64) Line {
    std::atomic<std::uint64_t> value;
  };
  Line head[2], tail[2];  // of the ring that side 0, side 1 writes
  Line asleep[2];         // by side
  Line starved[2];        // the writer of ring s waits for space
};

RingChannel::RingChannel(Descriptor socket, RingOffer offer, int side)
    : socket_(std::move(socket)), bell_(std::move(offer.bell)), side_(side) {
  static_assert(sizeof(Shared) <= kPage && std::atomic<std::uint64_t>::is_always_lock_free);
  if (!is_sealed_memory(offer.memory.get(), mapped_) || bell_.get() < 0)
    throw std::runtime_error("shared memory is not a sealed memory file");
  capacity_ = mapped_ < kPage ? 0 : (mapped_ - kPage) / 2;
  if (capacity_ < kLeast || capacity_ > kMost || !std::has_single_bit(capacity_) || mapped_ != kPage + 2 * capacity_)
    throw std::runtime_error("shared memory has no valid size");
  void* memory = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_SHARED, offer.memory.get(), 0);
  if (memory == MAP_FAILED) throw_errno("mmap");
  shared_ = static_cast<Shared*>(memory);
  auto* rings = static_cast<std::uint8_t*>(memory) + kPage;
  out_ = rings + (side ? capacity_ : 0);
  in_ = rings + (side ? 0 : capacity_);
}

RingChannel::~RingChannel() {
  if (shared_) ::munmap(shared_, mapped_);
}

void RingChannel::ring() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  auto& asleep = shared_->asleep[1 - side_].value;
  if (!asleep.load(std::memory_order_relaxed) || !asleep.exchange(0)) return;
  signal(bell_);
}

void RingChannel::set_asleep(bool asleep) { shared_->asleep[side_].value.store(asleep, std::memory_order_seq_cst); }

bool RingChannel::readable() const {
  int ring = 1 - side_;
  return shared_->head[ring].value.load() != shared_->tail[ring].value.load(std::memory_order_relaxed);
}

bool RingChannel::writable() const {
  return shared_->head[side_].value.load(std::memory_order_relaxed) - shared_->tail[side_].value.load() < capacity_;
}

std::ptrdiff_t RingChannel::write(std::span<const iovec> pieces) {
  auto& head_word = shared_->head[side_].value;
  auto& tail_word = shared_->tail[side_].value;
  std::uint64_t head = head_word.load(std::memory_order_relaxed);
  std::size_t total = 0;
  for (const iovec& piece : pieces) {
    auto* from = static_cast<const std::uint8_t*>(piece.iov_base);
    for (std::size_t left = piece.iov_len; left;) {
      std::uint64_t used = head - tail_word.load(std::memory_order_acquire);
      if (used > capacity_) return -1;
      if (used == capacity_) {
        // What was written must be visible before waiting until it is read.
        head_word.store(head, std::memory_order_release);
        ring();
        shared_->starved[side_].value.store(1, std::memory_order_seq_cst);
        if (head - tail_word.load(std::memory_order_seq_cst) >= capacity_) return static_cast<std::ptrdiff_t>(total);
        continue;
      }
      std::size_t at = head & (capacity_ - 1);
      std::size_t part = std::min({left, kSlice, static_cast<std::size_t>(capacity_ - used), capacity_ - at});
      std::memcpy(out_ + at, from, part);
      head += part;
      from += part;
      left -= part;
      total += part;
      bool last = left == 0 && &piece == &pieces.back();
      // Consecutive small pieces become visible together.
      if (last || part >= kSlice / 4) {
        head_word.store(head, std::memory_order_release);
        ring();
      }
    }
  }
  head_word.store(head, std::memory_order_release);
  return static_cast<std::ptrdiff_t>(total);
}

std::ptrdiff_t RingChannel::read(std::span<const iovec> pieces) {
  int ring_number = 1 - side_;
  auto& tail_word = shared_->tail[ring_number].value;
  std::uint64_t tail = tail_word.load(std::memory_order_relaxed);
  std::uint64_t ready = shared_->head[ring_number].value.load(std::memory_order_acquire) - tail;
  if (ready > capacity_) return -1;
  std::size_t total = 0;
  for (const iovec& piece : pieces) {
    auto* to = static_cast<std::uint8_t*>(piece.iov_base);
    for (std::size_t left = piece.iov_len; left && ready;) {
      std::size_t at = tail & (capacity_ - 1);
      std::size_t part = std::min({left, kSlice, static_cast<std::size_t>(ready), capacity_ - at});
      std::memcpy(to, in_ + at, part);
      tail += part;
      to += part;
      left -= part;
      ready -= part;
      total += part;
      tail_word.store(tail, std::memory_order_seq_cst);
      if (shared_->starved[ring_number].value.load() && shared_->starved[ring_number].value.exchange(0)) ring();
    }
  }
  return static_cast<std::ptrdiff_t>(total);
}

Descriptor make_ring_memory(std::size_t capacity) {
  return make_sealed_memory(kPage + 2 * std::bit_ceil(std::clamp(capacity, kLeast, kMost)));
}

Listener listen_local(std::uint16_t port) {
  for (int tries = 0; tries < 100; ++tries) {
    Listener listener{open_local(), port ? port : random_port()};
    sockaddr_un name;
    socklen_t size = local_name(listener.port, name);
    if (::bind(listener.socket.get(), reinterpret_cast<sockaddr*>(&name), size) == 0) {
      if (::listen(listener.socket.get(), 1024) < 0) throw_errno("listen");
      return listener;
    }
    if (port || errno != EADDRINUSE) throw_errno("bind");
  }
  throw_errno("bind");
}

Descriptor connect_local(std::uint16_t port) {
  Descriptor socket = open_local();
  sockaddr_un name;
  socklen_t size = local_name(port, name);
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&name), size) < 0) throw_errno("connect");
  return socket;
}

bool same_user(int socket) {
  ucred other{};
  socklen_t size = sizeof other;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &other, &size) == 0 && other.uid == ::geteuid();
}

}  // namespace gradwire::stream
