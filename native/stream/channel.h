// Channel: an ordered, reliable byte stream in both directions between two processes: a TCP socket or a pair of rings.
#pragma once
#include <sys/uio.h>

#include <cstddef>
#include <span>

#include "core/link_stats.h"

namespace gradwire::stream {

class Channel {
 public:
  virtual ~Channel() = default;
  // Bytes written or read; 0 when it would block, -1 when the other end is closed.
  virtual std::ptrdiff_t write(std::span<const iovec> pieces) = 0;
  virtual std::ptrdiff_t read(std::span<const iovec> pieces) = 0;
  // Becomes readable when there may be something to read, or the other end is closed.
  virtual int fd() const = 0;
  // Whether epoll reports when a blocked write may continue; rings use their doorbell instead.
  virtual bool polled_for_writable() const = 0;
  // Adds what the kernel knows about the path, if anything.
  virtual void describe(LinkStats& stats) = 0;
};

}  // namespace gradwire::stream
