// libFuzzer target: the emulator's packets. The first ten bytes are the offload header as the kernel writes it, the
// next two choose a range of segments, the rest is the packet. A valid packet is measured and cut, and every part must
// be a valid packet.
#include <cstdint>
#include <cstring>

#include "emulator/packet.h"

using namespace gradwire::emulator;

namespace {

void require(bool holds) {
  if (!holds) __builtin_trap();
}

std::uint64_t wire_bytes(const Packet& packet) {
  std::uint64_t sum = 0;
  for (std::uint32_t i = 0; i < packet.segments(); ++i) {
    std::uint32_t bytes = packet.segment_bytes(i);
    require(bytes > 0 && bytes <= packet.length());
    sum += bytes;
  }
  return sum;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 12) return 0;
  OffloadHeader offload;
  offload.flags = data[0];
  offload.gso_type = data[1];
  std::memcpy(&offload.header_length, data + 2, 2);
  std::memcpy(&offload.gso_size, data + 4, 2);
  std::memcpy(&offload.checksum_start, data + 6, 2);
  std::memcpy(&offload.checksum_offset, data + 8, 2);
  Packet packet(data + 12, static_cast<std::uint32_t>(size - 12), offload);
  if (!packet.valid()) return 0;
  packet.destination();
  std::uint64_t whole = wire_bytes(packet);
  require(whole >= packet.length());
  if (packet.flow()) {
    Packet translated = packet;
    HostAddress address = packet.destination();
    translated.set_source(address, 4242);
    translated.set_destination(address, 2424);
    auto flow = translated.flow();
    require(flow && flow->source == address && flow->destination == address && translated.length() == packet.length());
  }
  if (packet.segments() < 2) return 0;
  std::uint32_t first = data[10] % packet.segments();
  std::uint32_t last = first + 1 + data[11] % (packet.segments() - first);
  if (first == 0 && last == packet.segments()) return 0;
  PacketPtr part = packet.slice(first, last);
  require(part->valid() && part->segments() == last - first);
  std::uint64_t expected = 0;
  for (std::uint32_t i = first; i < last; ++i) expected += packet.segment_bytes(i);
  require(wire_bytes(*part) == expected);
  Packet again(part->data(), part->length(), part->offload());
  require(again.valid() && again.segments() == part->segments() && again.destination() == packet.destination());
  return 0;
}
