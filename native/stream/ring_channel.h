// RingChannel: shared memory as a channel: one ring per direction in an anonymous sealed memory file. It is passed over
// a local socket, so it disappears with its two processes, however they end. The socket stays open to detect the end of
// the other process. What the other process writes is not trusted: indices are checked, headers are copied before they
// are read.
#pragma once
#include <atomic>
#include <string>

#include "core/descriptor.h"
#include "stream/channel.h"
#include "stream/tcp_channel.h"

namespace gradwire::stream {

// Passed with the greeting: the memory (by the initiator) and each side's doorbell, an eventfd.
struct RingOffer {
  Descriptor memory, bell;
};

class RingChannel : public Channel {
 public:
  // `side` 0 created the memory. Throws std::runtime_error when the memory is not sealed or has no valid size.
  RingChannel(Descriptor socket, RingOffer offer, int side);
  ~RingChannel() override;
  std::ptrdiff_t write(std::span<const iovec> pieces) override;
  std::ptrdiff_t read(std::span<const iovec> pieces) override;
  int fd() const override { return socket_.get(); }
  bool polled_for_writable() const override { return false; }
  void describe(LinkStats&) override {}

  bool readable() const;
  bool writable() const;
  // The doorbell is rung only while the other side is marked asleep. After marking, check once more before sleeping.
  void set_asleep(bool asleep);

 private:
  struct Shared;
  void ring();

  Descriptor socket_, bell_;
  int side_;
  std::size_t capacity_ = 0, mapped_ = 0;
  Shared* shared_ = nullptr;
  std::uint8_t* out_ = nullptr;
  std::uint8_t* in_ = nullptr;
};

Descriptor make_ring_memory(std::size_t capacity);

// Local sockets in this network namespace, named by a number; they disappear with their process.
Listener listen_local(std::uint16_t port);
Descriptor connect_local(std::uint16_t port);
// Whether the process at the other end runs as the same user: another user could relay between two ends.
bool same_user(int socket);

}  // namespace gradwire::stream
