// Poller: what an Endpoint needs from its driver.
#pragma once
#include <cstdint>

namespace gradwire::stream {

class Poller {
 public:
  virtual ~Poller() = default;
  // From now on, `events` of `fd` (POLLIN, POLLOUT, POLLRDHUP, and always POLLERR and POLLHUP) go to handle_ready,
  // until the endpoint closes `fd`. `added`: it is watched already, for other events. Throws std::system_error.
  virtual void watch(int fd, std::uint32_t events, bool added) = 0;
  // An eventfd. The processes at the other ends of rings signal it while this one is marked asleep.
  virtual int bell() const = 0;
};

}  // namespace gradwire::stream
