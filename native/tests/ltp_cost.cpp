// What LTP costs per megabyte without a kernel: two endpoints exchange datagrams in memory. Run under callgrind, which
// counts the instructions of the endpoints alone:
//   valgrind --tool=callgrind --toggle-collect='gradwire::ltp::Endpoint::poll_transmit*'
//     --toggle-collect='gradwire::ltp::Endpoint::handle_datagram*' build/.../ltp_cost [MB] [datagram] [tolerant]
#include <cstdio>
#include <cstdlib>
#include <deque>

#include "ltp/endpoint.h"

using namespace gradwire;
using namespace gradwire::ltp;

namespace {

constexpr Time kDelay = kMillisecond;

struct Flight {
  Time at;
  int to;
  Datagram bytes;
};

Address address_of(int host) {
  Address address;
  address.port = static_cast<std::uint16_t>(1 + host);
  return address;
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t megabytes = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 40;
  Settings settings;
  settings.largest_datagram = static_cast<std::uint16_t>(argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 1472);
  bool tolerant = argc > 3;
  std::uint8_t secret[32] = {1};
  Endpoint hosts[2] = {{settings, {0, 1}, secret, Secret{1}}, {settings, {1, 1}, secret, Secret{2}}};
  hosts[0].connect(0, 1, address_of(1));
  hosts[1].connect(0, 0, address_of(0));
  std::vector<std::uint8_t> source(20'000'000, 1), target(source.size()), buffer(65507);
  std::deque<Flight> flights;
  std::size_t left = megabytes * 1'000'000 / source.size(), packets = 0;
  Time now = 0;
  auto begin = [&] {
    hosts[1].post(now, 0, {1, target.data(), target.size(), 1, 0, 0});
    SendRequest request{1, source.data(), source.size(), 1, 4, 0, tolerant ? 980'000u : kWhole, {}, left};
    if (tolerant) {
      auto importance = std::make_shared<Importance>();
      importance->span = 1024;
      for (std::size_t i = 0; i < source.size() / 1024; ++i)
        importance->energies.push_back(static_cast<float>(1 + i * 7919 % 1000));
      request.importance = importance;
    }
    hosts[0].send(now, 1, std::move(request));
  };
  auto turn = [&] {
    for (int host = 0; host < 2; ++host) {
      Transmit run;
      while (hosts[host].poll_transmit(now, buffer, 44, run))
        for (std::size_t at = 0; at < run.size; at += run.segment, ++packets) {
          auto first = buffer.begin() + static_cast<std::ptrdiff_t>(at);
          auto size = static_cast<std::ptrdiff_t>(std::min(run.segment, run.size - at));
          flights.push_back({now + kDelay, 1 - host, Datagram(first, first + size)});
        }
      Event event;
      while (hosts[host].poll_event(event))
        if (event.type == EventType::received && --left > 0) begin();
    }
    now += 20 * kMicrosecond;
    for (int host = 0; host < 2; ++host)
      if (hosts[host].poll_timeout(now) <= now) hosts[host].handle_timeout(now);
    for (; !flights.empty() && flights.front().at <= now; flights.pop_front())
      hosts[flights.front().to].handle_datagram(now, address_of(1 - flights.front().to), flights.front().bytes);
  };
  while (now < kSecond) turn();  // connects, and finds the largest datagram
  packets = 0;
  begin();
  while (left > 0) turn();
  std::printf("%zu MB in %zu packets, %.3f s of virtual time\n", megabytes, packets,
              static_cast<double>(now - kSecond) / kSecond);
}
