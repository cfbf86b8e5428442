// PendingSocket: a socket that is not authenticated yet, and the greetings that it sends and receives.
#pragma once
#include <initializer_list>
#include <optional>

#include "core/address.h"
#include "core/descriptor.h"
#include "core/time.h"
#include "stream/greeting.h"
#include "stream/ring_channel.h"

namespace gradwire::stream {

struct PendingSocket {
  enum class Stage { connecting, connected, greeted };  // of an outgoing connection: HELLO is sent at the end
  Descriptor socket;
  Address from;                       // of an incoming connection; without its port
  std::optional<std::uint32_t> rank;  // of an outgoing connection
  Stage stage = Stage::connecting;
  Time deadline = 0;
  GreetingBytes bytes{};            // being read
  GreetingBytes sent{};             // the challenge of an incoming connection, or the HELLO of an outgoing one
  std::optional<EphemeralKey> key;  // of the HELLO
  std::size_t got = 0;
  RingOffer offer;  // ours, or what arrived with the HELLO

  // False: the other end is closed.
  bool send(Bytes greeting, std::initializer_list<int> descriptors = {}) const;
  // Reads into `bytes`; descriptors that arrive go to `offer`. False: the other end is closed.
  bool receive();
  bool complete() const { return got == kGreeting; }
};

}  // namespace gradwire::stream
