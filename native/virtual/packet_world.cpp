#include "virtual/packet_world.h"

#include <algorithm>
#include <cstring>

#include "core/random.h"

namespace gradwire::packets {
namespace {

// IPv4 and UDP headers of a datagram on the lab's wire.
constexpr std::size_t kHeaders = 28;
constexpr std::uint16_t kPort = 5000;
constexpr std::uint8_t kSecret[] = "secret of the simulation";

Address address_of(std::uint32_t host) {
  Address address;
  address.ip[10] = address.ip[11] = 0xff;
  address.ip[12] = 10;
  address.ip[14] = static_cast<std::uint8_t>(host >> 8);
  address.ip[15] = static_cast<std::uint8_t>(host);
  address.port = kPort;
  return address;
}

std::uint32_t host_of(const Address& address) {
  return static_cast<std::uint32_t>(address.ip[14] << 8 | address.ip[15]);
}

}  // namespace

PacketWorld::PacketWorld(std::uint32_t hosts, std::uint64_t seed) : engine_(hosts), hosts_(hosts), scratch_(65536) {
  Random random(seed);
  ltp::Settings settings;
  settings.encrypt = false;  // packets have the same length either way
  for (std::uint32_t rank = 0; rank < hosts; ++rank) {
    Secret entropy;
    for (auto& byte : entropy) byte = static_cast<std::uint8_t>(random.next());
    hosts_[rank].endpoint = std::make_unique<ltp::Endpoint>(settings, ltp::Identity{rank, 1}, Bytes(kSecret), entropy);
  }
}

void PacketWorld::connect(std::uint32_t one, std::uint32_t other) {
  hosts_[one].endpoint->connect(now_, other, address_of(other));
  hosts_[other].endpoint->connect(now_, one, address_of(one));
  touched_.insert(touched_.end(), {one, other});
}

std::uint8_t* PacketWorld::content(std::uint64_t size) {
  if (contents_.empty() || contents_.back().size() < size) contents_.emplace_back(size);
  return contents_.back().data();
}

void PacketWorld::expect(std::uint32_t host, std::uint32_t peer, std::uint64_t token, std::uint64_t size,
                         Time deadline) {
  ReceiveRequest request;
  request.threshold = request.deadline = deadline;
  request.token = request.tag = token;
  request.data = content(size);
  request.size = size;
  hosts_[host].endpoint->post(now_, peer, request);
  touched_.push_back(host);
}

void PacketWorld::send(std::uint32_t host, std::uint32_t peer, std::uint64_t token, std::uint64_t size,
                       std::uint32_t tolerance, std::shared_ptr<const Importance> importance) {
  SendRequest request;
  request.tolerance = tolerance;
  request.importance = std::move(importance);
  request.token = request.tag = request.seed = token;
  request.data = content(size);
  request.size = size;
  hosts_[host].endpoint->send(now_, peer, std::move(request));
  touched_.push_back(host);
}

std::vector<ByteRange> PacketWorld::take_missing(std::uint32_t host, std::uint64_t token) {
  auto found = missing_.extract({host, token});
  return found ? std::move(found.mapped()) : std::vector<ByteRange>{};
}

void PacketWorld::offer(std::uint32_t host, const Address& to, Bytes datagram) {
  std::vector<std::uint8_t> bytes(kHeaders + datagram.size());
  bytes[0] = 0x45;
  std::memcpy(bytes.data() + kHeaders, datagram.data(), datagram.size());
  auto packet = std::make_unique<emulator::Packet>(bytes.data(), static_cast<std::uint32_t>(bytes.size()),
                                                   emulator::OffloadHeader{});
  packet->source_host = static_cast<std::uint16_t>(host);
  packet->target_host = static_cast<std::uint16_t>(host_of(to));
  engine_.ingress(now_, std::move(packet));
}

void PacketWorld::serve(std::uint32_t number, std::vector<Delivery>& deliveries) {
  Host& host = hosts_[number];
  if (host.endpoint->poll_timeout(now_) <= now_) host.endpoint->handle_timeout(now_);
  ltp::Transmit run;
  while (host.endpoint->poll_transmit(now_, scratch_, 16, run))
    for (std::size_t at = 0; at < run.size; at += run.segment)
      offer(number, run.to, Bytes(scratch_).subspan(at, std::min(run.segment, run.size - at)));
  Event event;
  while (host.endpoint->poll_event(event)) {
    bool sent = event.type == EventType::sent;
    if (event.type == EventType::received && !event.missing.empty()) missing_[{number, event.token}] = event.missing;
    if (sent || event.type == EventType::received) deliveries.push_back({now_, number, event.token, sent});
  }
  host.due = std::max(host.endpoint->poll_timeout(now_), now_ + 1);
}

void PacketWorld::deliver(const emulator::Packet& packet, std::vector<Delivery>& deliveries) {
  std::vector<std::uint8_t> datagram(packet.data() + kHeaders, packet.data() + packet.length());
  hosts_[packet.target_host].endpoint->handle_datagram(now_, address_of(packet.source_host), datagram);
  serve(packet.target_host, deliveries);
}

std::vector<Delivery> PacketWorld::run(Time limit) {
  Time end = now_ + limit;
  std::vector<Delivery> deliveries;
  // Hosts with new requests since the last call are served first.
  auto touched = std::move(touched_);
  touched_.clear();
  std::sort(touched.begin(), touched.end());
  touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
  for (std::uint32_t host : touched) serve(host, deliveries);
  while (deliveries.empty()) {
    Time next = engine_.next_event();
    for (const Host& host : hosts_) next = std::min(next, host.due);
    if (next > end) {
      now_ = end;
      break;
    }
    now_ = std::max(now_, next);
    engine_.advance(now_, [&](emulator::PacketPtr packet) { deliver(*packet, deliveries); });
    for (std::uint32_t host = 0; host < hosts_.size(); ++host)
      if (hosts_[host].due <= now_) serve(host, deliveries);
  }
  return deliveries;
}

LinkStats PacketWorld::stats(std::uint32_t host, std::uint32_t peer) const {
  const ltp::Peer* known = hosts_[host].endpoint->peer(peer);
  return known && known->connection ? known->connection->stats() : LinkStats{};
}

}  // namespace gradwire::packets
