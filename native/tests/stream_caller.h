// Caller: an initiator of a stream that a test plays itself, on a socket of its own.
#pragma once
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

#include "stream/frame.h"
#include "stream/greeting.h"
#include "stream/record.h"
#include "tests/check.h"

namespace gradwire::test {

inline int dial(std::uint16_t port) {
  int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK(::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0);
  return fd;
}

inline void receive_greeting_bytes(int fd, stream::GreetingBytes& bytes) {
  CHECK(::recv(fd, bytes.data(), bytes.size(), MSG_WAITALL) == static_cast<ssize_t>(bytes.size()));
}

inline void send_greeting_bytes(int fd, Bytes bytes) {
  CHECK(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
}

inline stream::Greeting hello_of_rank_0(const PublicKey& key) {
  stream::Greeting hello;
  hello.encrypt = true;
  hello.peer_rank = 1;
  hello.epoch = 100;
  hello.credit = 1u << 30;
  hello.key = key;
  return hello;
}

// Up to the ACCEPT that answers its HELLO.
struct Caller {
  explicit Caller(std::uint16_t port, const std::vector<std::uint8_t>& secret = std::vector<std::uint8_t>(32, 7))
      : greeter(secret), fd(dial(port)) {
    stream::GreetingBytes challenge{};
    receive_greeting_bytes(fd, challenge);
    hello = greeter.write(hello_of_rank_0(key.public_key()), challenge);
    send_greeting_bytes(fd, hello);
    receive_greeting_bytes(fd, accept);
  }
  ~Caller() { ::close(fd); }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;
  // The first sealed frame.
  void prove() {
    auto answer = stream::Greeter::parse(accept);
    CHECK(answer.has_value());
    auto secrets = greeter.secrets(key, answer->key, hello, accept);
    CHECK(secrets.has_value());
    stream::RecordKeys keys(secrets->initiator, Aead::Direction::seal);
    std::uint8_t ping[stream::kHeader + 16];
    auto header = MutableBytes(ping).first(stream::kHeader);
    stream::write(header, {stream::FrameType::ping, 0, 0, 0, 1, 0});
    keys.seal(header, ping, ping + stream::kHeader, true);
    send_greeting_bytes(fd, ping);
  }
  // Nothing more comes from the other side.
  bool ended() {
    std::uint8_t byte;
    return ::recv(fd, &byte, 1, 0) <= 0;
  }
  EphemeralKey key{HeldSecret(Secret{3})};
  stream::Greeter greeter;
  int fd;
  stream::GreetingBytes hello{}, accept{};
};

}  // namespace gradwire::test
