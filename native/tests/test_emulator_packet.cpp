// Super-packets cut into parts: every byte is kept once, sequence numbers, flags and lengths are those of the part.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "emulator/packet.h"
#include "tests/check.h"

using namespace gradwire::emulator;

namespace {

uint32_t load32(const uint8_t* p) { return static_cast<uint32_t>(p[0]) << 24 | p[1] << 16 | p[2] << 8 | p[3]; }
uint32_t load16(const uint8_t* p) { return static_cast<uint32_t>(p[0] << 8 | p[1]); }

uint32_t folded(const std::vector<uint8_t>& bytes) {
  uint32_t sum = 0;
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) sum += load16(bytes.data() + i);
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  return sum;
}

bool header_sum_holds(const uint8_t* ip) { return folded({ip, ip + 20}) == 0xffff; }

std::vector<uint8_t> tcp_bytes(uint32_t payload) {
  std::vector<uint8_t> bytes(20 + 32 + payload);
  bytes[0] = 0x45;
  bytes[9] = 6;
  bytes[16] = 10, bytes[17] = 77, bytes[19] = 2;
  bytes[20 + 12] = 8 << 4;  // 32 bytes of TCP header
  bytes[20 + 13] = 0x80 | 0x18 | 0x01;
  bytes[20 + 4 + 3] = 100;  // sequence number
  for (uint32_t i = 0; i < payload; ++i) bytes[52 + i] = static_cast<uint8_t>(i * 31);
  return bytes;
}

void parts_hold_every_byte_once() {
  const auto bytes = tcp_bytes(10 * 1000 + 300);
  OffloadHeader offload;
  offload.gso_type = 1;
  offload.gso_size = 1000;
  const Packet packet(bytes.data(), static_cast<uint32_t>(bytes.size()), offload);
  CHECK(packet.valid() && packet.segments() == 11);
  CHECK(packet.segment_bytes(0) == 1052 && packet.segment_bytes(10) == 352);
  const uint8_t v4[4] = {10, 77, 0, 2};
  CHECK(packet.destination() == mapped(v4));
  std::vector<uint8_t> rebuilt;
  for (auto [first, last] : {std::pair<uint32_t, uint32_t>{0, 3}, {3, 4}, {4, 11}}) {
    const PacketPtr part = packet.slice(first, last);
    const uint8_t* data = part->data();
    CHECK(part->segments() == last - first);
    CHECK(load16(data + 2) == part->length());
    CHECK(header_sum_holds(data));
    CHECK(load32(data + 24) == 100 + first * 1000);
    CHECK((data[33] & 0x09) == (last == 11 ? 0x09 : 0));
    CHECK((data[33] & 0x80) == (first == 0 ? 0x80 : 0));
    CHECK((part->offload().gso_size == 0) == (part->segments() == 1));
    rebuilt.insert(rebuilt.end(), data + 52, data + part->length());
  }
  CHECK(rebuilt == std::vector<uint8_t>(bytes.begin() + 52, bytes.end()));
}

constexpr uint32_t kIp6 = 40;

// A super-packet from fd77::1 to fd77::2 with a transport header of `header` bytes.
std::vector<uint8_t> bytes6(uint8_t protocol, uint32_t header, uint32_t payload) {
  std::vector<uint8_t> bytes(kIp6 + header + payload);
  bytes[0] = 0x60;
  bytes[6] = protocol;
  for (uint32_t at : {8u, 24u}) bytes[at] = 0xfd, bytes[at + 1] = 0x77;
  bytes[23] = 1, bytes[39] = 2;
  if (protocol == 6) bytes[kIp6 + 12] = static_cast<uint8_t>(header / 4 << 4);
  for (uint32_t i = 0; i < payload; ++i) bytes[kIp6 + header + i] = static_cast<uint8_t>(i * 31);
  return bytes;
}

// What the kernel expects in the checksum's field: addresses, length and protocol, as RFC 8200 8.1 has them.
uint32_t pseudo_header(const uint8_t* ip, uint32_t transport) {
  std::vector<uint8_t> pseudo(ip + 8, ip + 40);
  pseudo.insert(pseudo.end(),
                {0, 0, static_cast<uint8_t>(transport >> 8), static_cast<uint8_t>(transport), 0, 0, 0, ip[6]});
  return folded(pseudo);
}

void parts_of_ipv6_keep_lengths_and_checksums(uint8_t protocol, uint32_t header) {
  const auto bytes = bytes6(protocol, header, 4 * 1000 + 300);
  OffloadHeader offload;
  offload.gso_type = protocol == 6 ? 4 : 5;
  offload.gso_size = 1000;
  const Packet packet(bytes.data(), static_cast<uint32_t>(bytes.size()), offload);
  CHECK(packet.valid() && packet.segments() == 5);
  CHECK(packet.segment_bytes(0) == kIp6 + header + 1000 && packet.segment_bytes(4) == kIp6 + header + 300);
  CHECK(packet.destination() == (HostAddress{0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2}));
  std::vector<uint8_t> rebuilt;
  for (auto [first, last] : {std::pair<uint32_t, uint32_t>{0, 1}, {1, 3}, {3, 5}}) {
    const PacketPtr part = packet.slice(first, last);
    const uint8_t* data = part->data();
    const uint32_t transport = part->length() - kIp6;
    CHECK(load16(data + 4) == transport);
    CHECK(load16(data + kIp6 + (protocol == 6 ? 16 : 6)) == pseudo_header(data, transport));
    CHECK(part->offload().checksum_start == kIp6);
    if (protocol == 6) CHECK(load32(data + kIp6 + 4) == first * 1000);
    if (protocol == 17) CHECK(load16(data + kIp6 + 4) == transport);
    CHECK(part->destination() == packet.destination() && part->segments() == last - first);
    rebuilt.insert(rebuilt.end(), data + kIp6 + header, data + part->length());
  }
  CHECK(rebuilt == std::vector<uint8_t>(bytes.begin() + kIp6 + header, bytes.end()));
}

// Extension headers come before TCP and UDP: what is behind them is not known, so such a super-packet cannot be cut.
void ipv6_super_packets_with_extensions_are_rejected() {
  OffloadHeader offload;
  offload.gso_size = 1000;
  const auto bytes = bytes6(0, 8, 3000);  // hop-by-hop options
  CHECK(!Packet(bytes.data(), static_cast<uint32_t>(bytes.size()), offload).valid());
  CHECK(Packet(bytes.data(), static_cast<uint32_t>(bytes.size()), {}).valid());
  CHECK(!Packet(bytes.data(), 39, {}).valid());
}

void slices_of_slices_agree() {
  const auto bytes = tcp_bytes(5000);
  OffloadHeader offload;
  offload.gso_size = 1000;
  const Packet packet(bytes.data(), static_cast<uint32_t>(bytes.size()), offload);
  const PacketPtr direct = packet.slice(3, 4);
  const PacketPtr twice = packet.slice(2, 5)->slice(1, 2);
  CHECK(direct->length() == twice->length());
  CHECK(std::vector<uint8_t>(direct->data(), direct->data() + direct->length()) ==
        std::vector<uint8_t>(twice->data(), twice->data() + twice->length()));
}

// Whatever a host writes into its device must not make the emulator read outside the packet.
void invalid_packets_are_rejected() {
  std::srand(1);
  for (int round = 0; round < 200000; ++round) {
    std::vector<uint8_t> bytes(static_cast<size_t>(std::rand() % 80));
    for (auto& byte : bytes) byte = static_cast<uint8_t>(std::rand());
    if (!bytes.empty() && round % 2) bytes[0] = round % 4 == 1 ? 0x45 : 0x60;
    if (bytes.size() > 9 && round % 3) bytes[6] = bytes[9] = round % 5 ? 6 : 17;
    OffloadHeader offload;
    offload.gso_size = static_cast<uint16_t>(std::rand() % 40);
    const Packet packet(bytes.data(), static_cast<uint32_t>(bytes.size()), offload);
    if (!packet.valid()) continue;
    uint32_t total = 0;
    for (uint32_t i = 0; i < packet.segments(); ++i) total += packet.segment_bytes(i);
    CHECK(total >= bytes.size());
    if (packet.segments() > 1) CHECK(packet.slice(1, packet.segments())->length() <= bytes.size());
  }
}

}  // namespace

int main() {
  parts_hold_every_byte_once();
  parts_of_ipv6_keep_lengths_and_checksums(6, 32);
  parts_of_ipv6_keep_lengths_and_checksums(17, 8);
  ipv6_super_packets_with_extensions_are_rejected();
  slices_of_slices_agree();
  invalid_packets_are_rejected();
  return gradwire::test::finish();
}
