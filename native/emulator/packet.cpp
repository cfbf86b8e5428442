#include "emulator/packet.h"

#include <algorithm>

namespace gradwire::emulator {
namespace {

constexpr uint8_t kIcmp = 1, kTcp = 6, kUdp = 17;
constexpr uint8_t kEchoReply = 0, kEcho = 8;
constexpr uint32_t kHeader6 = 40;      // of IPv6, without extensions
constexpr uint8_t kNeedsChecksum = 1;  // VIRTIO_NET_HDR_F_NEEDS_CSUM
constexpr uint8_t kFinPush = 0x09, kCongestionReduced = 0x80;

uint32_t load16(const uint8_t* p) { return static_cast<uint32_t>(p[0] << 8 | p[1]); }
uint32_t load32(const uint8_t* p) { return load16(p) << 16 | load16(p + 2); }
void store16(uint8_t* p, uint32_t value) {
  p[0] = static_cast<uint8_t>(value >> 8);
  p[1] = static_cast<uint8_t>(value);
}
void store32(uint8_t* p, uint32_t value) {
  store16(p, value >> 16);
  store16(p + 2, value & 0xffff);
}
uint32_t fold(uint32_t sum) {
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  return sum;
}
uint32_t sum16(const uint8_t* p, uint32_t bytes) {
  uint32_t sum = 0;
  for (uint32_t i = 0; i + 1 < bytes; i += 2) sum += load16(p + i);
  return sum;
}

// The folded sum after a word that it covers has changed (RFC 1624, equation 3).
uint32_t corrected(uint32_t sum, uint32_t old, uint32_t value) { return fold(sum + (~old & 0xffff) + value); }

// Bytes of the IP header at the begin of a packet; 0 when there is no whole one.
uint32_t header_bytes(const std::vector<uint8_t>& bytes) {
  if (bytes.empty()) return 0;
  uint32_t header = 0;
  if (bytes[0] >> 4 == 6) header = kHeader6;
  if (bytes[0] >> 4 == 4) header = (bytes[0] & 15u) * 4;
  return header >= 20 && header <= bytes.size() ? header : 0;
}

}  // namespace

HostAddress mapped(const uint8_t* v4) {
  HostAddress address{};
  address[10] = address[11] = 0xff;
  std::copy_n(v4, 4, address.begin() + 12);
  return address;
}

Packet::Packet(const uint8_t* data, uint32_t length, OffloadHeader offload)
    : bytes_(data, data + length), offload_(offload) {
  measure();
}

void Packet::measure() {
  const uint32_t length = this->length();
  segments_ = 0;
  const uint32_t ip = ip_bytes_ = header_bytes(bytes_);
  if (ip == 0) return;
  if (offload_.gso_size == 0) {
    headers_ = ip;
    segments_ = 1;
    return;
  }
  if (protocol() == kTcp && ip + 20 <= length) {
    headers_ = ip + (bytes_[ip + 12] >> 4) * 4u;
    if (headers_ < ip + 20) return;
  } else if (protocol() == kUdp && ip + 8 <= length) {
    headers_ = ip + 8;
  } else {
    return;
  }
  if (headers_ >= length) return;
  segments_ = (length - headers_ + offload_.gso_size - 1) / offload_.gso_size;
}

HostAddress Packet::destination() const {
  if (!v6()) return mapped(bytes_.data() + 16);
  HostAddress address;
  std::copy_n(bytes_.data() + 24, address.size(), address.begin());
  return address;
}

std::optional<Flow> Packet::flow() const {
  constexpr uint32_t kFragment = 0x3fff;  // its offset, or more fragments
  const uint8_t* ip = bytes_.data();
  if (!valid() || v6() || (load16(ip + 6) & kFragment)) return {};
  const uint8_t kind = protocol();
  if (length() < ip_bytes_ + (kind == kTcp ? 20 : 8)) return {};
  const uint8_t* transport = ip + ip_bytes_;
  const bool echo = kind == kIcmp && (transport[0] == kEcho || transport[0] == kEchoReply);
  if (kind != kTcp && kind != kUdp && !echo) return {};
  const auto port = [&](uint32_t at) { return static_cast<uint16_t>(load16(transport + at)); };
  return Flow{kind, mapped(ip + 12), mapped(ip + 16), port(echo ? 4 : 0), port(echo ? 4 : 2)};
}

void Packet::set_source(const HostAddress& address, uint16_t port) {
  set_end(12, protocol() == kIcmp ? 4 : 0, address, port);
}

void Packet::set_destination(const HostAddress& address, uint16_t port) {
  set_end(16, protocol() == kIcmp ? 4 : 2, address, port);
}

// A checksum that the receiving kernel completes covers the addresses so far; one of ICMP never does.
void Packet::set_end(uint32_t address_at, uint32_t port_at, const HostAddress& address, uint16_t port) {
  uint8_t* ip = bytes_.data();
  uint8_t* transport = ip + ip_bytes_;
  const uint8_t kind = protocol();
  uint8_t* field = transport + (kind == kIcmp ? 2 : kind == kTcp ? 16 : 6);
  const bool partial = offload_.flags & kNeedsChecksum;
  const bool none = kind == kUdp && !partial && load16(field) == 0;
  uint32_t header = ~load16(ip + 10) & 0xffff;
  uint32_t sum = (partial ? load16(field) : ~load16(field)) & 0xffff;
  for (uint32_t i = 0; i < 4; i += 2) {
    const uint32_t old = load16(ip + address_at + i), value = load16(address.data() + 12 + i);
    header = corrected(header, old, value);
    if (kind != kIcmp) sum = corrected(sum, old, value);
    store16(ip + address_at + i, value);
  }
  if (!partial) sum = corrected(sum, load16(transport + port_at), port);
  store16(transport + port_at, port);
  store16(ip + 10, ~header & 0xffff);
  if (none) return;
  uint32_t result = partial ? sum : ~sum & 0xffff;
  if (kind == kUdp && !partial && result == 0) result = 0xffff;
  store16(field, result);
}

uint32_t Packet::segment_bytes(uint32_t index) const {
  if (segments_ == 1) return length();
  const uint32_t before = index * offload_.gso_size;
  const uint32_t left = length() - headers_ - before;
  return headers_ + (left < offload_.gso_size ? left : offload_.gso_size);
}

PacketPtr Packet::slice(uint32_t first, uint32_t last) const {
  const uint32_t payload = length() - headers_;
  const uint32_t begin = first * offload_.gso_size;
  const uint32_t end = last == segments_ ? payload : last * offload_.gso_size;
  PacketPtr part(new Packet);
  part->bytes_.reserve(headers_ + end - begin);
  part->bytes_.assign(bytes_.begin(), bytes_.begin() + headers_);
  part->bytes_.insert(part->bytes_.end(), bytes_.begin() + headers_ + begin, bytes_.begin() + headers_ + end);
  part->offload_ = offload_;
  part->ip_bytes_ = ip_bytes_;
  part->headers_ = headers_;
  part->segments_ = last - first;
  part->due = due;
  part->waited = waited;
  part->source_host = source_host;
  part->target_host = target_host;
  part->hop = hop;
  part->rewrite_headers(first, last == segments_);
  return part;
}

void Packet::rewrite_headers(uint32_t first, bool keeps_tail) {
  uint8_t* ip = bytes_.data();
  uint8_t* transport = ip + ip_bytes_;
  const uint32_t transport_bytes = length() - ip_bytes_;
  const bool tcp = protocol() == kTcp;

  if (v6()) {
    store16(ip + 4, transport_bytes);
  } else {
    store16(ip + 2, length());
    store16(ip + 4, load16(ip + 4) + first);
    store16(ip + 10, 0);
    store16(ip + 10, ~fold(sum16(ip, ip_bytes_)) & 0xffff);
  }
  if (tcp) {
    store32(transport + 4, load32(transport + 4) + first * offload_.gso_size);
    if (!keeps_tail) transport[13] &= static_cast<uint8_t>(~kFinPush);
    if (first > 0) transport[13] &= static_cast<uint8_t>(~kCongestionReduced);
  } else {
    store16(transport + 4, transport_bytes);
  }
  // The receiving kernel completes the checksum; until then the field holds the sum of the pseudo-header.
  const uint32_t place = tcp ? 16 : 6;
  const uint32_t addresses = v6() ? sum16(ip + 8, 32) : sum16(ip + 12, 8);
  store16(transport + place, fold(addresses + protocol() + transport_bytes));
  offload_.flags = kNeedsChecksum;
  offload_.checksum_start = static_cast<uint16_t>(ip_bytes_);
  offload_.checksum_offset = static_cast<uint16_t>(place);
  offload_.header_length = static_cast<uint16_t>(headers_);
  if (segments_ == 1) {
    offload_.gso_type = 0;
    offload_.gso_size = 0;
  }
}

}  // namespace gradwire::emulator
