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

bool header_sum_holds(const uint8_t* ip) {
  uint32_t sum = 0;
  for (int i = 0; i < 20; i += 2) sum += load16(ip + i);
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  return sum == 0xffff;
}

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
  CHECK(packet.destination() == 0x0a4d0002);
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
    if (!bytes.empty() && round % 2) bytes[0] = 0x45;
    if (bytes.size() > 9 && round % 3) bytes[9] = round % 5 ? 6 : 17;
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
  slices_of_slices_agree();
  invalid_packets_are_rejected();
  return gradwire::test::finish();
}
