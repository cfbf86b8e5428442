// The streams' endpoint without its driver: two of them in one thread, on sockets that poll(2) watches and in a time
// that the test sets.
#include <poll.h>
#include <sys/eventfd.h>

#include "stream/endpoint.h"
#include "tests/check.h"
#include "tests/requests.h"

using namespace gradwire;
using test::sending;

namespace {

// Only the test moves it.
Time now = 1000 * kSecond;
Time clock_now() { return now; }

class PollPoller : public stream::Poller {
 public:
  void watch(int fd, std::uint32_t events, bool added) override {
    CHECK(!added || watched_.count(fd));
    watched_[fd] = static_cast<short>(events);
  }
  int bell() const override { return bell_.get(); }

  std::vector<pollfd> ready(int timeout) {
    std::vector<pollfd> all{{bell(), POLLIN, 0}};
    for (auto& [fd, events] : watched_) all.push_back({fd, events, 0});
    ::poll(all.data(), all.size(), timeout);
    // A descriptor that the endpoint has closed is no longer watched.
    for (const pollfd& one : all)
      if (one.revents & POLLNVAL) watched_.erase(one.fd);
    std::erase_if(all, [&](const pollfd& one) { return !one.revents || one.revents & POLLNVAL || one.fd == bell(); });
    return all;
  }

 private:
  Descriptor bell_ = checked(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd");
  std::map<int, short> watched_;
};

stream::EndpointConfig config(std::uint32_t rank, bool local) {
  stream::EndpointConfig config;
  config.rank = rank;
  config.epoch = 100 + rank;
  config.secret.assign(32, 7);
  config.local = local;
  config.ring = 1u << 16;
  return config;
}

struct Side {
  Side(std::uint32_t rank, bool local) : endpoint(config(rank, local), poller) {}

  // In the order that endpoint.h asks for.
  void turn() {
    for (const pollfd& one : poller.ready(1))
      endpoint.handle_ready(now, one.fd, static_cast<std::uint32_t>(one.revents));
    endpoint.handle_rings(clock_now);
    if (endpoint.poll_timeout() <= now) endpoint.handle_timeout(now);
    collect();
  }
  void collect() {
    for (Event event; endpoint.poll_event(event);) events.push_back(std::move(event));
  }
  const Event* find(EventType type, std::uint64_t token = 0) const {
    for (const Event& event : events)
      if (event.type == type && event.token == token) return &event;
    return nullptr;
  }

  PollPoller poller;
  stream::Endpoint endpoint;
  std::vector<Event> events;
};

struct Two {
  explicit Two(bool local) : a(0, local), b(1, local) {
    a.endpoint.connect(now, 1, parse_address("127.0.0.1", b.endpoint.port()));
    b.endpoint.connect(now, 0, parse_address("127.0.0.1", a.endpoint.port()));
    CHECK(until([&] { return a.find(EventType::connected) && b.find(EventType::connected); }));
    CHECK(a.endpoint.peer(1)->state == stream::Peer::State::connected);
  }
  template <class Ready>
  bool until(Ready ready) {
    for (int turns = 0; turns < 5000 && !ready(); ++turns) {
      now += kMillisecond;
      a.turn();
      b.turn();
    }
    return ready();
  }
  Side a, b;
};

// Both ways; the large one is more than a ring or a socket buffer holds.
void messages_arrive(bool local) {
  Two two(local);
  std::vector<std::uint8_t> large(5'000'000), small(10, 3), large_in(large.size()), small_in(small.size());
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = static_cast<std::uint8_t>(i * i >> 7);
  two.a.endpoint.send(now, 1, sending(large, 5, 1));
  two.b.endpoint.send(now, 0, sending(small, 6, 1));
  two.b.endpoint.post(now, 0, {2, large_in.data(), large_in.size(), 5, 0, 0});
  two.a.endpoint.post(now, 1, {2, small_in.data(), small_in.size(), 6, 0, 0});
  CHECK(two.until([&] {
    return two.a.find(EventType::sent, 1) && two.b.find(EventType::sent, 1) && two.a.find(EventType::received, 2) &&
           two.b.find(EventType::received, 2);
  }));
  CHECK(large == large_in && small == small_in);
  CHECK(two.b.find(EventType::received, 2)->arrived == large.size());
  CHECK(two.a.endpoint.link_stats().at(1).counters.bytes_sent > large.size());
  CHECK(two.b.endpoint.counters().accepted == 1);
}

// Nothing is read from b any more; time jumps from timer to timer.
void a_silent_peer_is_found_by_the_clock_alone(bool local) {
  Two two(local);
  std::vector<std::uint8_t> target(100);
  two.a.endpoint.post(now, 1, {9, target.data(), target.size(), 1, 0, 0});
  Time heard = two.a.endpoint.peer(1)->connection->last_received();
  int timers = 0;
  while (!two.a.find(EventType::failed) && ++timers < 100) {
    CHECK(two.a.endpoint.poll_timeout() < kNever);
    now = two.a.endpoint.poll_timeout();
    two.a.endpoint.handle_timeout(now);
    two.a.collect();
  }
  CHECK(now == heard + config(0, local).dead_after);
  CHECK(timers >= 10 && timers <= 20);  // one keepalive a second
  CHECK(two.a.find(EventType::failed) && two.a.find(EventType::failed)->failure == Failure::vanished);
  CHECK(two.a.find(EventType::received, 9) && two.a.find(EventType::received, 9)->failure == Failure::vanished);
  CHECK(two.a.endpoint.peer(1)->failure == Failure::vanished);
  CHECK(two.a.endpoint.poll_timeout() == kNever);
  // The other end detects it by the closed socket.
  CHECK(two.until([&] { return two.b.find(EventType::failed) != nullptr; }));
}

void a_peer_that_never_connects_fails_at_its_deadline() {
  Side b(1, false);
  b.endpoint.connect(now, 0, parse_address("127.0.0.1", 1));
  Time deadline = b.endpoint.poll_timeout();
  CHECK(deadline == now + config(1, false).connect_timeout);
  now = deadline - 1;
  b.turn();
  CHECK(b.events.empty());
  now = deadline;
  b.turn();
  CHECK(b.find(EventType::failed) && b.find(EventType::failed)->failure == Failure::no_answer);
}

void a_cancelled_receive_has_no_event(bool local) {
  Two two(local);
  auto target = std::make_unique<std::vector<std::uint8_t>>(1000);
  std::vector<std::uint8_t> source(1000, 1);
  two.b.endpoint.post(now, 0, {3, target->data(), target->size(), 1, 0, 0});
  CHECK(two.b.endpoint.cancel(now, 0, 3));
  CHECK(!two.b.endpoint.cancel(now, 0, 3));
  target.reset();
  two.a.endpoint.send(now, 1, sending(source, 1, 4));
  for (int turns = 0; turns < 20; ++turns) two.a.turn(), two.b.turn();
  CHECK(!two.b.find(EventType::received, 3));
}

void shutting_tells_the_peer_and_refuses_requests(bool local) {
  Two two(local);
  std::vector<std::uint8_t> bytes(100);
  two.a.endpoint.send(now, 7, sending(bytes, 1, 1));
  two.a.collect();
  CHECK(two.a.find(EventType::sent, 1) && two.a.find(EventType::sent, 1)->failure == Failure::no_answer);
  two.a.endpoint.shut(now);
  two.a.endpoint.send(now, 1, sending(bytes, 1, 2));
  two.a.endpoint.post(now, 7, {3, bytes.data(), bytes.size(), 1, 0, 0});
  two.a.collect();
  CHECK(two.a.find(EventType::failed)->failure == Failure::local_close);
  CHECK(two.a.find(EventType::sent, 2)->failure == Failure::local_close);
  CHECK(two.a.find(EventType::received, 3)->failure == Failure::local_close);
  CHECK(two.until([&] { return two.b.find(EventType::failed) != nullptr; }));
  CHECK(two.b.find(EventType::failed)->failure == Failure::closed);
}

// What the driver relies on before it sleeps.
void a_sleeping_end_of_rings_is_signalled() {
  Two two(true);
  std::vector<std::uint8_t> source(10, 1);
  pollfd bell{two.b.poller.bell(), POLLIN, 0};
  while (two.b.endpoint.handle_rings(clock_now)) {
  }
  CHECK(!two.b.endpoint.rings_ready() && ::poll(&bell, 1, 0) == 0);
  two.b.endpoint.set_asleep(true);
  two.a.endpoint.send(now, 1, sending(source, 1, 1));
  CHECK(two.b.endpoint.rings_ready() && ::poll(&bell, 1, 0) == 1);
  two.b.endpoint.set_asleep(false);
  CHECK(two.b.endpoint.handle_rings(clock_now));
}

}  // namespace

int main() {
  a_peer_that_never_connects_fails_at_its_deadline();
  for (bool local : {false, true}) {
    messages_arrive(local);
    a_silent_peer_is_found_by_the_clock_alone(local);
    a_cancelled_receive_has_no_event(local);
    shutting_tells_the_peer_and_refuses_requests(local);
  }
  a_sleeping_end_of_rings_is_signalled();
  return gradwire::test::finish();
}
