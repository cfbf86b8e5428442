// NATs: which packets pass, under which ports, and that what is rewritten keeps correct checksums.
#include <cstdint>
#include <vector>

#include "emulator/nat.h"
#include "tests/check.h"

using namespace gradwire::emulator;

namespace {

constexpr Nanoseconds kSecond = 1'000'000'000;
constexpr uint8_t kIcmp = 1, kTcp = 6, kUdp = 17;
const uint8_t kInside[4] = {192, 168, 1, 2}, kOutside[4] = {10, 77, 0, 1};

struct End {
  uint8_t address[4];
  uint16_t port;
};
const End kHost{{192, 168, 1, 2}, 5000}, kFirst{{10, 77, 0, 2}, 6000}, kSecondPeer{{10, 77, 0, 3}, 6000};

uint32_t load16(const uint8_t* p) { return static_cast<uint32_t>(p[0] << 8 | p[1]); }
void store16(uint8_t* p, uint32_t value) {
  p[0] = static_cast<uint8_t>(value >> 8), p[1] = static_cast<uint8_t>(value);
}
uint32_t folded(std::vector<uint8_t> bytes) {
  if (bytes.size() % 2) bytes.push_back(0);
  uint32_t sum = 0;
  for (size_t i = 0; i < bytes.size(); i += 2) sum += load16(bytes.data() + i);
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  return sum;
}

// Of a packet with whole checksums: 0xffff each.
uint32_t transport_sum(const uint8_t* ip, uint32_t length) {
  std::vector<uint8_t> bytes(ip + 20, ip + length);
  if (ip[9] != kIcmp) {
    bytes.insert(bytes.begin(), ip + 12, ip + 20);
    bytes.insert(bytes.begin(),
                 {0, ip[9], static_cast<uint8_t>((length - 20) >> 8), static_cast<uint8_t>(length - 20)});
  }
  return folded(bytes);
}

Packet packet(uint8_t protocol, const End& from, const End& to) {
  const uint32_t header = protocol == kTcp ? 20 : 8;
  std::vector<uint8_t> bytes(20 + header + 50);
  uint8_t* ip = bytes.data();
  ip[0] = 0x45, ip[9] = protocol;
  store16(ip + 2, static_cast<uint32_t>(bytes.size()));
  for (int i = 0; i < 4; ++i) ip[12 + i] = from.address[i], ip[16 + i] = to.address[i];
  for (uint32_t i = 0; i < 50; ++i) bytes[20 + header + i] = static_cast<uint8_t>(i * 37);
  if (protocol == kIcmp) {
    ip[20] = 8;
    store16(ip + 24, from.port);
  } else {
    store16(ip + 20, from.port);
    store16(ip + 22, to.port);
  }
  if (protocol == kTcp) ip[32] = 5 << 4;
  if (protocol == kUdp) store16(ip + 24, header + 50);
  store16(ip + 10, ~folded({ip, ip + 20}) & 0xffff);
  const uint32_t place = protocol == kTcp ? 16 : protocol == kUdp ? 6 : 2;
  store16(ip + 20 + place, ~transport_sum(ip, static_cast<uint32_t>(bytes.size())) & 0xffff);
  return {bytes.data(), static_cast<uint32_t>(bytes.size()), {}};
}

bool sums_hold(const Packet& one) {
  return folded({one.data(), one.data() + 20}) == 0xffff && transport_sum(one.data(), one.length()) == 0xffff;
}

Nat make(NatKind kind, std::vector<uint16_t> forwarded = {}) {
  return Nat({kind, mapped(kInside), mapped(kOutside), 30 * kSecond, 7, std::move(forwarded)});
}

// The public port of a packet from the host, 0 when it is dropped.
uint16_t sends(Nat& nat, Nanoseconds now, const End& to, uint8_t protocol = kUdp, const End& from = kHost) {
  Packet one = packet(protocol, from, to);
  if (!nat.outbound(now, one)) return 0;
  CHECK(sums_hold(one) && one.flow()->source == mapped(kOutside));
  return one.flow()->source_port;
}

// The host's port at which a packet arrives, 0 when it is dropped.
uint16_t receives(Nat& nat, Nanoseconds now, const End& from, uint16_t port, uint8_t protocol = kUdp) {
  Packet one = packet(protocol, from, {{10, 77, 0, 1}, port});
  if (!nat.inbound(now, one)) return 0;
  CHECK(sums_hold(one) && one.flow()->destination == mapped(kInside));
  return one.flow()->destination_port;
}

void a_full_cone_has_one_port_that_everybody_may_use() {
  Nat nat = make(NatKind::kFullCone);
  CHECK(receives(nat, 0, kFirst, 5000) == 0);
  CHECK(sends(nat, 0, kFirst) == 5000 && sends(nat, 0, kSecondPeer) == 5000);
  CHECK(receives(nat, 1, {{9, 9, 9, 9}, 9}, 5000) == 5000);
}

void a_port_restricted_nat_admits_whom_the_host_has_sent_to() {
  Nat nat = make(NatKind::kPortRestricted);
  CHECK(sends(nat, 0, kFirst) == 5000);
  CHECK(receives(nat, 1, kFirst, 5000) == 5000);
  CHECK(receives(nat, 1, kSecondPeer, 5000) == 0);
  CHECK(receives(nat, 1, {{10, 77, 0, 2}, 6001}, 5000) == 0);
  CHECK(sends(nat, 2, kSecondPeer) == 5000 && receives(nat, 3, kSecondPeer, 5000) == 5000);
}

void a_symmetric_nat_has_another_port_for_each_peer() {
  Nat nat = make(NatKind::kSymmetric);
  const uint16_t first = sends(nat, 0, kFirst), second = sends(nat, 0, kSecondPeer);
  CHECK(first && second && first != second && first != 5000);
  CHECK(sends(nat, 1, kFirst) == first);
  CHECK(receives(nat, 1, kFirst, first) == 5000 && receives(nat, 1, kFirst, second) == 0);
}

void a_mapping_ends_with_its_timeout_and_every_packet_renews_it() {
  for (NatKind kind : {NatKind::kFullCone, NatKind::kPortRestricted, NatKind::kSymmetric}) {
    Nat nat = make(kind);
    const uint16_t port = sends(nat, 0, kFirst);
    CHECK(receives(nat, 29 * kSecond, kFirst, port) == 5000);
    CHECK(sends(nat, 58 * kSecond, kFirst) == port);
    CHECK(receives(nat, 89 * kSecond, kFirst, port) == 0);
  }
  Nat nat = make(NatKind::kSymmetric);
  const uint16_t before = sends(nat, 0, kFirst);
  CHECK(sends(nat, 31 * kSecond, kFirst) != before);
  const uint16_t connection = sends(nat, 0, kFirst, kTcp);
  CHECK(receives(nat, 3600 * kSecond, kFirst, connection, kTcp) == 5000);  // TCP is not forgotten while it is idle
}

void a_restarted_router_has_forgotten_all() {
  Nat nat = make(NatKind::kSymmetric);
  const uint16_t before = sends(nat, 0, kFirst);
  nat.forget();
  CHECK(receives(nat, 1, kFirst, before) == 0);
  CHECK(sends(nat, 2, kFirst) != before);
}

void a_forwarded_port_keeps_its_number_for_good() {
  for (NatKind kind : {NatKind::kPortRestricted, NatKind::kSymmetric}) {
    Nat nat = make(kind, {5000});
    CHECK(receives(nat, 0, kFirst, 5000) == 5000 && receives(nat, 0, kFirst, 5001) == 0);
    CHECK(sends(nat, 1000 * kSecond, kSecondPeer) == 5000);
    // Nobody else gets its number.
    CHECK(sends(nat, 0, kFirst, kUdp, {{192, 168, 1, 2}, 5002}) != 5000);
  }
}

void pings_pass_and_other_protocols_do_not() {
  Nat nat = make(NatKind::kPortRestricted);
  CHECK(sends(nat, 0, {{10, 77, 0, 2}, 5000}, kIcmp) == 5000);
  Packet sctp = packet(kUdp, kHost, kFirst);
  const_cast<uint8_t*>(sctp.data())[9] = 132;
  CHECK(!nat.outbound(0, sctp));
  Packet stranger = packet(kUdp, {{192, 168, 1, 3}, 5000}, kFirst);
  CHECK(!nat.outbound(0, stranger));
}

// What the receiving kernel completes holds the sum of the addresses only.
void unfinished_checksums_stay_those_of_the_addresses() {
  Nat nat = make(NatKind::kPortRestricted);
  const Packet whole = packet(kUdp, kHost, kFirst);
  std::vector<uint8_t> bytes(whole.data(), whole.data() + whole.length());
  OffloadHeader offload;
  offload.flags = 1;
  const auto pseudo = [](const uint8_t* ip) {
    std::vector<uint8_t> sum(ip + 12, ip + 20);
    sum.insert(sum.end(), {0, ip[9], 0, 58});
    return folded(sum);
  };
  store16(bytes.data() + 26, pseudo(bytes.data()));
  Packet one(bytes.data(), 78, offload);
  CHECK(nat.outbound(0, one));
  CHECK(load16(one.data() + 26) == pseudo(one.data()));
}

void a_scan_does_not_fill_the_memory() {
  Nat nat = make(NatKind::kSymmetric);
  int mapped_ports = 0;
  for (int i = 0; i < 20000; ++i) mapped_ports += sends(nat, 0, {{10, 77, 0, 2}, static_cast<uint16_t>(i + 1)}) != 0;
  CHECK(mapped_ports > 10000 && mapped_ports <= 16384);
  CHECK(sends(nat, 31 * kSecond, kFirst) != 0);  // old ones make room
}

}  // namespace

int main() {
  a_full_cone_has_one_port_that_everybody_may_use();
  a_port_restricted_nat_admits_whom_the_host_has_sent_to();
  a_symmetric_nat_has_another_port_for_each_peer();
  a_mapping_ends_with_its_timeout_and_every_packet_renews_it();
  a_restarted_router_has_forgotten_all();
  a_forwarded_port_keeps_its_number_for_good();
  pings_pass_and_other_protocols_do_not();
  unfinished_checksums_stay_those_of_the_addresses();
  a_scan_does_not_fill_the_memory();
  return gradwire::test::finish();
}
