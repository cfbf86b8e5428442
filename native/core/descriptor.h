// Descriptor: a file descriptor with one owner; and what its users share: errors of system calls, sealed memory files.
#pragma once
#include <unistd.h>

#include <cstddef>
#include <utility>

namespace gradwire {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~Descriptor() { reset(); }
  int get() const { return fd_; }
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

// Throws std::system_error for the present errno; `call` names the system call.
[[noreturn]] void throw_errno(const char* call);
// Owns `fd`; throws when the call that returned it failed.
Descriptor checked(int fd, const char* call);
// Adds one to an eventfd.
void signal(const Descriptor& event);
// An anonymous memory file of fixed size. The seals guarantee to every process that maps it that no page disappears.
Descriptor make_sealed_memory(std::size_t bytes);
// Whether `file` is sealed against shrinking; then its size is in `bytes`.
bool is_sealed_memory(int file, std::size_t& bytes);

}  // namespace gradwire
