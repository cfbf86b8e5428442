#include "core/descriptor.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <system_error>

namespace gradwire {

void throw_errno(const char* call) { throw std::system_error(errno, std::generic_category(), call); }

Descriptor checked(int fd, const char* call) {
  if (fd < 0) throw_errno(call);
  return Descriptor(fd);
}

void signal(const Descriptor& event) {
  std::uint64_t one = 1;
  [[maybe_unused]] ssize_t written = ::write(event.get(), &one, sizeof one);
}

Descriptor make_sealed_memory(std::size_t bytes) {
  Descriptor memory = checked(::memfd_create("gradwire", MFD_CLOEXEC | MFD_ALLOW_SEALING), "memfd_create");
  if (::ftruncate(memory.get(), static_cast<off_t>(bytes)) < 0) throw_errno("ftruncate");
  if (::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
    throw_errno("sealing shared memory");
  return memory;
}

bool is_sealed_memory(int file, std::size_t& bytes) {
  struct stat status;
  int seals = ::fcntl(file, F_GET_SEALS);
  if (seals < 0 || !(seals & F_SEAL_SHRINK) || ::fstat(file, &status) < 0) return false;
  bytes = static_cast<std::size_t>(status.st_size);
  return true;
}

}  // namespace gradwire
