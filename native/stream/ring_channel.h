// Shared memory as a channel: one ring each way in a sealed memory file that has no name, passed over a local socket and
// so gone with its two processes however they end. The socket stays open to tell when the other process is gone.
// What the other process writes into the memory is never trusted: indices are checked, headers copied before they are read.
#pragma once
#include <atomic>
#include <string>

#include "io/descriptor.h"
#include "stream/channel.h"
#include "stream/tcp_channel.h"

namespace gradwire::stream {

// What is passed at the greeting: the memory (by the initiator) and each side's doorbell, an eventfd.
struct RingOffer {
  io::Descriptor memory, bell;
};

class RingChannel : public Channel {
 public:
  // `side` 0 made the memory. Throws std::runtime_error when the memory is not as it must be.
  RingChannel(io::Descriptor socket, RingOffer offer, int side);
  ~RingChannel() override;
  std::ptrdiff_t write(std::span<const iovec> pieces) override;
  std::ptrdiff_t read(std::span<const iovec> pieces) override;
  int fd() const override { return socket_.get(); }
  bool polled_for_room() const override { return false; }
  void describe(ltp::LinkStats&) override {}

  bool readable() const;
  bool has_room() const;
  // The doorbell is rung only for those who say that they sleep. After saying so, look once more before sleeping.
  void set_asleep(bool asleep);

 private:
  struct Shared;
  void ring();

  io::Descriptor socket_, bell_;
  int side_;
  std::size_t capacity_ = 0, mapped_ = 0;
  Shared* shared_ = nullptr;
  std::uint8_t* out_ = nullptr;
  std::uint8_t* in_ = nullptr;
};

io::Descriptor make_ring_memory(std::size_t capacity);

// Local sockets in this network namespace, named by a number; they vanish with their process.
Listener listen_local(std::uint16_t port);
io::Descriptor connect_local(std::uint16_t port);
// Whether the process at the other end runs as the same user: others could sit between two ends.
bool same_user(int socket);

}  // namespace gradwire::stream
