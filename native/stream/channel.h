// An ordered, reliable run of bytes each way between two processes: a TCP socket or a pair of rings.
#pragma once
#include <sys/uio.h>

#include <cstddef>
#include <span>

#include "ltp/stats.h"

namespace gradwire::stream {

class Channel {
 public:
  virtual ~Channel() = default;
  // Bytes taken or given; 0 when it would block, -1 when the other end is gone.
  virtual std::ptrdiff_t write(std::span<const iovec> pieces) = 0;
  virtual std::ptrdiff_t read(std::span<const iovec> pieces) = 0;
  // Becomes readable when there may be something to read, or the other end is gone.
  virtual int fd() const = 0;
  // Asks to hear when a write that would block may go on; a socket is told by epoll, rings by their doorbell.
  virtual bool polled_for_room() const = 0;
  // What the kernel knows of the path, where there is one.
  virtual void describe(ltp::LinkStats& stats) = 0;
};

}  // namespace gradwire::stream
