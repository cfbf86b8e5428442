// libgradwire-pace: preloaded into ranks when the machine allows no namespaces. Every TCP socket sends no faster than
// GRADWIRE_PACE_BYTES bytes per second, by the kernel's own pacing. Nothing else is shaped: no delay, no loss, no UDP.
#include <dlfcn.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstdlib>

extern "C" __attribute__((visibility("default"))) int socket(int domain, int type, int protocol) noexcept {
  using Socket = int (*)(int, int, int);
  static const auto real = reinterpret_cast<Socket>(dlsym(RTLD_NEXT, "socket"));
  const int fd = real(domain, type, protocol);
  const bool tcp = (domain == AF_INET || domain == AF_INET6) && (type & 0xf) == SOCK_STREAM;
  const char* rate = std::getenv("GRADWIRE_PACE_BYTES");
  if (fd >= 0 && tcp && rate != nullptr) {
    // Sockets that a listening one accepts inherit the limit.
    const uint64_t bytes = std::strtoull(rate, nullptr, 10);
    if (bytes > 0) setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &bytes, sizeof bytes);
  }
  return fd;
}
