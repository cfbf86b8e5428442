#include "stream/epoll.h"

#include <poll.h>
#include <sys/eventfd.h>

namespace gradwire::stream {

// The endpoint uses poll's names.
static_assert(EPOLLIN == POLLIN && EPOLLOUT == POLLOUT && EPOLLERR == POLLERR && EPOLLHUP == POLLHUP &&
              EPOLLRDHUP == POLLRDHUP);

Epoll::Epoll()
    : epoll_(checked(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      event_(checked(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd")) {
  watch(event_.get(), EPOLLIN, false);
}

void Epoll::watch(int fd, std::uint32_t events, bool added) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (::epoll_ctl(epoll_.get(), added ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event) < 0) throw_errno("epoll_ctl");
}

int Epoll::wait(std::span<epoll_event> ready, int timeout) const {
  return ::epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), timeout);
}

void Epoll::signal() const { gradwire::signal(event_); }

void Epoll::drain() const {
  std::uint64_t drained;
  [[maybe_unused]] ssize_t count = ::read(event_.get(), &drained, sizeof drained);
}

}  // namespace gradwire::stream
