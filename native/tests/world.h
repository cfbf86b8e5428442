// A network in virtual time for LTP endpoints: every impairment is scripted and seeded, a run is reproducible to the
// bit.
#pragma once
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <tuple>
#include <vector>

#include "core/random.h"
#include "ltp/endpoint.h"

namespace gradwire::ltp::test {

// One direction of a path: first the queue and the wire (rate), then delay, loss and other impairments.
struct PipeSpec {
  double rate = 12.5e6;  // bytes per second
  Time delay = 10 * kMillisecond;
  double queue = 250e3;  // bytes, drop-tail
  double loss = 0;
  double reorder = 0;  // share of packets held back by `reorder_by`
  Time reorder_by = 2 * kMillisecond;
  double duplicate = 0;
  double corrupt = 0;
  std::size_t mtu = 1472;  // UDP payload
};

struct Pipe {
  explicit Pipe(const PipeSpec& s, std::uint64_t seed) : spec(s), random(seed) {}
  PipeSpec spec;
  Random random;
  Time free_at = 0;
  std::uint64_t dropped = 0, carried = 0, bytes = 0;
  double waited = 0;  // seconds in the queue, over all packets that entered it
};

struct Host {
  std::unique_ptr<Endpoint> endpoint;
  Address address;
  std::uint32_t rank = 0;
  std::vector<Event> events;
  bool paused = false;
};

inline Address address_of(std::uint32_t rank) {
  Address address;
  address.ip[15] = static_cast<std::uint8_t>(rank + 1);
  address.port = static_cast<std::uint16_t>(5000 + rank);
  return address;
}

class World {
 public:
  explicit World(std::uint64_t seed) : random_(seed) {}

  Host& add(std::uint32_t rank, const Settings& settings = {}, const char* secret = "a job secret",
            std::uint64_t epoch = 1) {
    auto host = std::make_unique<Host>();
    host->rank = rank;
    host->address = address_of(rank);
    restart(*host, settings, secret, epoch);
    hosts_.push_back(std::move(host));
    return *hosts_.back();
  }
  void restart(Host& host, const Settings& settings, const char* secret, std::uint64_t epoch) {
    Secret entropy;
    for (auto& byte : entropy) byte = static_cast<std::uint8_t>(random_.next());
    Bytes bytes(reinterpret_cast<const std::uint8_t*>(secret), std::strlen(secret));
    host.endpoint = std::make_unique<Endpoint>(settings, Identity{host.rank, epoch}, bytes, entropy);
  }
  std::shared_ptr<Pipe> pipe(const PipeSpec& spec) { return std::make_shared<Pipe>(spec, random_.next()); }
  void route(std::uint32_t from, std::uint32_t to, std::shared_ptr<Pipe> pipe) {
    routes_.push_back({from, to, std::move(pipe)});
  }
  // A private path in both directions.
  std::pair<Pipe*, Pipe*> link(std::uint32_t a, std::uint32_t b, const PipeSpec& spec) {
    auto there = pipe(spec), back = pipe(spec);
    route(a, b, there);
    route(b, a, back);
    return {there.get(), back.get()};
  }
  void connect(Host& a, Host& b) {
    a.endpoint->connect(now, b.rank, b.address);
    b.endpoint->connect(now, a.rank, a.address);
  }

  // Runs until `done` or the deadline; true when done.
  bool run(Time limit, const std::function<bool()>& done = [] { return false; }) {
    Time end = now + limit;
    for (;;) {
      flush();
      if (done()) return true;
      Time next = arrivals_.empty() ? kNever : arrivals_.top().at;
      for (auto& host : hosts_)
        if (!host->paused) next = std::min(next, std::max(now, host->endpoint->poll_timeout(now)));
      if (next > end) return now = end, done();
      stuck_ = next == now ? stuck_ + 1 : 0;
      if (stuck_ > 100000) return std::fprintf(stderr, "virtual time stands still\n"), false;
      now = next;
      deliver();
      for (auto& host : hosts_)
        if (!host->paused && host->endpoint->poll_timeout(now) <= now) host->endpoint->handle_timeout(now);
    }
  }

  // What an attacker sees and can repeat.
  struct Captured {
    std::uint32_t from, to;
    Datagram bytes;
  };
  std::vector<Captured> tape;
  bool capture = false;
  void inject(std::uint32_t to, const Address& from, Datagram bytes) {
    for (auto& host : hosts_)
      if (host->rank == to) host->endpoint->handle_datagram(now, from, bytes);
  }
  // A datagram from `from` for which it is true gets lost.
  std::function<bool(std::uint32_t from, Bytes bytes)> drop;
  // Changes a datagram on its way, as an attacker between the two can.
  std::function<void(std::uint32_t from, Datagram& bytes)> change;
  // Ranks behind a NAT: the address that others see.
  std::map<std::uint32_t, Address> translated;
  Address outside_of(std::uint32_t rank) const {
    auto found = translated.find(rank);
    return found == translated.end() ? address_of(rank) : found->second;
  }
  // Sees every run of datagrams as it is handed to the system.
  std::function<void(std::uint32_t from, const Transmit& run)> watch;
  Time now = 77 * kSecond;
  // Bytes offered to the network per host, before any loss.
  std::uint64_t sent_bytes[16] = {};

 private:
  struct Arrival {
    Time at;
    std::uint64_t order;
    std::uint32_t from, to;
    Datagram bytes;
    bool operator<(const Arrival& other) const { return std::tie(at, order) > std::tie(other.at, other.order); }
  };
  struct Route {
    std::uint32_t from, to;
    std::shared_ptr<Pipe> pipe;
  };

  void flush() {
    static thread_local std::vector<std::uint8_t> buffer(65536);
    Transmit transmit;
    for (auto& host : hosts_) {
      while (!host->paused && host->endpoint->poll_transmit(now, buffer, 16, transmit)) {
        if (watch) watch(host->rank, transmit);
        for (std::size_t at = 0; at < transmit.size; at += transmit.segment)
          offer(host->rank, transmit.to, Bytes(buffer).subspan(at, std::min(transmit.segment, transmit.size - at)));
      }
      Event event;
      while (host->endpoint->poll_event(event)) host->events.push_back(event);
    }
  }
  void offer(std::uint32_t from, const Address& address, Bytes bytes) {
    auto to = static_cast<std::uint32_t>(address.port - 5000);
    for (auto& [rank, outside] : translated) {
      if (address == address_of(rank)) return;  // the NAT has forgotten it
      if (address == outside) to = rank;
    }
    sent_bytes[from % 16] += bytes.size();
    if (capture) tape.push_back({from, to, Datagram(bytes.begin(), bytes.end())});
    for (Route& route : routes_)
      if (route.from == from && route.to == to) return carry(*route.pipe, from, to, bytes);
  }
  void carry(Pipe& pipe, std::uint32_t from, std::uint32_t to, Bytes bytes) {
    const PipeSpec& spec = pipe.spec;
    if (bytes.size() > spec.mtu || (drop && drop(from, bytes))) return void(++pipe.dropped);
    double wire = static_cast<double>(bytes.size() + 28);
    pipe.free_at = std::max(pipe.free_at, now);
    double backlog = static_cast<double>(pipe.free_at - now) / kSecond * spec.rate;
    if (backlog + wire > spec.queue) return void(++pipe.dropped);
    pipe.waited += backlog / spec.rate;
    pipe.free_at += static_cast<Time>(wire / spec.rate * kSecond);
    if (pipe.random.uniform() < spec.loss) return void(++pipe.dropped);
    ++pipe.carried;
    pipe.bytes += bytes.size();
    Time at = pipe.free_at + spec.delay;
    if (pipe.random.uniform() < spec.reorder) at += spec.reorder_by;
    Datagram copy(bytes.begin(), bytes.end());
    if (change) change(from, copy);
    if (pipe.random.uniform() < spec.corrupt)
      copy[pipe.random.next() % copy.size()] ^= static_cast<std::uint8_t>(1 << pipe.random.next() % 8);
    if (pipe.random.uniform() < spec.duplicate) arrivals_.push({at + kMicrosecond, order_++, from, to, copy});
    arrivals_.push({at, order_++, from, to, std::move(copy)});
  }
  void deliver() {
    while (!arrivals_.empty() && arrivals_.top().at <= now) {
      Arrival arrival = arrivals_.top();
      arrivals_.pop();
      for (auto& host : hosts_)
        if (host->rank == arrival.to && !host->paused)
          host->endpoint->handle_datagram(now, outside_of(arrival.from), arrival.bytes);
    }
  }

  Random random_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<Route> routes_;
  std::priority_queue<Arrival> arrivals_;
  std::uint64_t order_ = 0;
  int stuck_ = 0;
};

inline std::vector<std::uint8_t> random_bytes(std::size_t size, std::uint64_t seed) {
  Random random(seed);
  std::vector<std::uint8_t> bytes(size);
  // Never zero, so that zeroed gaps can be distinguished from data.
  for (auto& byte : bytes) byte = static_cast<std::uint8_t>(1 + random.next() % 255);
  return bytes;
}

inline const Event* find_event(const Host& host, EventType type, std::uint64_t token) {
  for (const Event& event : host.events)
    if (event.type == type && event.token == token) return &event;
  return nullptr;
}

inline bool connected(const Host& host, std::uint32_t rank) {
  for (const Event& event : host.events)
    if (event.type == EventType::connected && event.rank == rank) return true;
  return false;
}

inline Failure failure_of(const Host& host, std::uint32_t rank) {
  for (const Event& event : host.events)
    if (event.type == EventType::failed && event.rank == rank) return event.failure;
  return Failure::none;
}

}  // namespace gradwire::ltp::test
