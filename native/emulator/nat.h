// Nat: the address translation of one host's router, IPv4. No clock, no I/O.
//
// In:  outbound(now, packet) from the host, inbound(now, packet) to its public address.
// Out: the packet with its addresses, ports and checksums rewritten; false when the router drops it.
//
// A mapping joins a port of the host with one of the public address (RFC 4787, RFC 5382). It is made by a packet of the
// host and lasts until no packet has used it for the timeout. Ports that are forwarded are mapped to themselves for
// good.
#pragma once
#include <compare>
#include <map>
#include <tuple>
#include <vector>

#include "emulator/packet.h"
#include "emulator/random.h"

namespace gradwire::emulator {

enum class NatKind : uint8_t {
  kFullCone,        // one port for all peers, the host's own if it is free; everybody may send to it
  kPortRestricted,  // the same, but only where the host has sent to may send to it
  kSymmetric,       // a random port for each peer, and only that peer may send to it
};

struct NatConfig {
  NatKind kind = NatKind::kPortRestricted;
  HostAddress inside{}, outside{};
  Nanoseconds timeout = 30'000'000'000;
  uint64_t seed = 1;
  std::vector<uint16_t> forwarded = {};
};

class Nat {
 public:
  explicit Nat(NatConfig config) : config_(std::move(config)), random_(config_.seed) {}

  bool outbound(Nanoseconds now, Packet& packet);
  bool inbound(Nanoseconds now, Packet& packet);
  // Forgets all mappings, as a router does that was restarted.
  void forget();
  const NatConfig& config() const { return config_; }

 private:
  struct Peer {
    HostAddress address{};
    uint16_t port = 0;
    friend auto operator<=>(const Peer&, const Peer&) = default;
  };
  using InsideKey = std::tuple<uint8_t, uint16_t, Peer>;  // protocol, the host's port, the peer if symmetric
  using OutsideKey = std::pair<uint8_t, uint16_t>;        // protocol, public port
  struct Mapping {
    InsideKey inside;
    Nanoseconds until = 0;
    Nanoseconds sweep_at = 0;
    std::map<Peer, Nanoseconds> allowed;  // peers that may send to it, until when; not used by kFullCone
  };

  bool forwards(uint16_t port) const;
  Nanoseconds lifetime(uint8_t protocol) const;
  // 0 when no port is left.
  uint16_t map(Nanoseconds now, const InsideKey& inside);
  uint16_t free_port(Nanoseconds now, uint8_t protocol, uint16_t wanted);
  // A packet to `peer` uses the mapping. False when it has too many peers.
  bool renew(Nanoseconds now, Mapping& mapping, const Peer& peer);
  void drop_expired(Nanoseconds now);

  NatConfig config_;
  Random random_;
  std::map<InsideKey, uint16_t> by_inside_;
  std::map<OutsideKey, Mapping> mappings_;
  Nanoseconds sweep_at_ = 0;
};

}  // namespace gradwire::emulator
