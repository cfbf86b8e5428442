// Packet: an IPv4 or IPv6 packet from a TUN device, possibly a super-packet that stands for many wire packets (GSO).
//
// The emulator moves super-packets whole, because that is fast, but counts, queues, rates and drops each wire packet in
// them. `slice` makes the super-packet of a range of the segments.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace gradwire::emulator {

using Nanoseconds = int64_t;
constexpr Nanoseconds kNever = INT64_MAX;

// In network byte order; an IPv4 address is stored as a v4-mapped IPv6 address.
using HostAddress = std::array<uint8_t, 16>;
HostAddress mapped(const uint8_t* v4);

// struct virtio_net_hdr; the kernel's own header does not compile as C++20 everywhere.
struct OffloadHeader {
  uint8_t flags = 0, gso_type = 0;
  uint16_t header_length = 0, gso_size = 0, checksum_start = 0, checksum_offset = 0;
};

// Both ends of an IPv4 packet of TCP, UDP or an ICMP echo, whose identifier stands for both ports.
struct Flow {
  uint8_t protocol = 0;
  HostAddress source{}, destination{};
  uint16_t source_port = 0, destination_port = 0;
};

class Packet {
 public:
  Packet(const uint8_t* data, uint32_t length, OffloadHeader offload);

  const uint8_t* data() const { return bytes_.data(); }
  uint32_t length() const { return static_cast<uint32_t>(bytes_.size()); }
  const OffloadHeader& offload() const { return offload_; }

  // False for what the emulator does not carry: not IP, a header with a wrong length, or a super-packet of another
  // protocol than TCP and UDP, or with IPv6 extension headers.
  bool valid() const { return segments_ > 0; }
  HostAddress destination() const;
  // None for what has no ports, other ICMP messages, fragments and IPv6.
  std::optional<Flow> flow() const;
  // Only for packets that have a flow; both are v4-mapped. Checksums are corrected (RFC 1624).
  void set_source(const HostAddress& address, uint16_t port);
  void set_destination(const HostAddress& address, uint16_t port);
  uint32_t segments() const { return segments_; }
  // Bytes of IP packet number `index` on the wire, link overhead not included.
  uint32_t segment_bytes(uint32_t index) const;
  std::unique_ptr<Packet> slice(uint32_t first, uint32_t last) const;
  // The same, but a plain copy when it is the whole packet: the headers stay unchanged.
  std::unique_ptr<Packet> part(uint32_t first, uint32_t last) const {
    return last - first == segments_ ? std::make_unique<Packet>(*this) : slice(first, last);
  }

  Nanoseconds due = 0;     // when the packet leaves the emulator or reaches its next link
  Nanoseconds waited = 0;  // in its device before it was read, as far as is known; counts as lateness
  uint16_t source_host = 0, target_host = 0, hop = 0;

 private:
  Packet() = default;
  void measure();
  bool v6() const { return bytes_[0] >> 4 == 6; }
  uint8_t protocol() const { return bytes_[v6() ? 6 : 9]; }
  void rewrite_headers(uint32_t first, bool keeps_tail);
  void set_end(uint32_t address_at, uint32_t port_at, const HostAddress& address, uint16_t port);

  std::vector<uint8_t> bytes_;
  OffloadHeader offload_;
  uint32_t ip_bytes_ = 0;                // of the IP header
  uint32_t headers_ = 0, segments_ = 0;  // IP and transport headers together
};

using PacketPtr = std::unique_ptr<Packet>;

}  // namespace gradwire::emulator
