// Epoll: the poller of the streams' loop: an epoll descriptor, and the eventfd that wakes a thread that waits for it.
#pragma once
#include <sys/epoll.h>

#include <span>

#include "core/descriptor.h"
#include "stream/poller.h"

namespace gradwire::stream {

class Epoll final : public Poller {
 public:
  Epoll();
  void watch(int fd, std::uint32_t events, bool added) override;
  int bell() const override { return event_.get(); }

  // How many of `ready` were filled; not positive: none. `timeout` is in milliseconds.
  int wait(std::span<epoll_event> ready, int timeout) const;
  // The present or the next wait() returns, with the bell among what is ready until it is drained.
  void signal() const;
  void drain() const;

 private:
  Descriptor epoll_, event_;
};

}  // namespace gradwire::stream
