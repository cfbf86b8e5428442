#include "stream/pending_socket.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace gradwire::stream {

bool PendingSocket::send(Bytes greeting, std::initializer_list<int> descriptors) const {
  iovec piece{const_cast<std::uint8_t*>(greeting.data()), greeting.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  if (descriptors.size()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), descriptors.begin(), descriptors.size() * sizeof(int));
  }
  // A greeting always fits an empty socket buffer.
  return ::sendmsg(socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(greeting.size());
}

// Of the descriptors, the last is the doorbell, one before it the memory.
bool PendingSocket::receive() {
  iovec piece{bytes.data() + got, bytes.size() - got};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))];
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t count = ::recvmsg(socket.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    std::size_t descriptors = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < descriptors; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      if (offer.bell.get() >= 0) offer.memory = std::move(offer.bell);
      offer.bell.reset(fd);
    }
  }
  got += static_cast<std::size_t>(count);
  return count > 0;
}

}  // namespace gradwire::stream
