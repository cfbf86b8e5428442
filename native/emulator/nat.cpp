#include "emulator/nat.h"

#include <algorithm>
#include <optional>

namespace gradwire::emulator {
namespace {

constexpr uint8_t kTcpProtocol = 6;
// RFC 5382, REQ-5: an established connection is not forgotten sooner.
constexpr Nanoseconds kTcpLifetime = 7'440'000'000'000;
constexpr uint16_t kFirstPort = 1024;
constexpr int kAttempts = 64;
// A job has a few hundred; more is a scan, and must not fill the memory.
constexpr size_t kMappingsMost = 16384;
constexpr size_t kAllowedMost = 4096;
// A full table is searched for expired entries this often, not for every packet of a scan.
constexpr Nanoseconds kSweepEvery = 1'000'000'000;

}  // namespace

bool Nat::forwards(uint16_t port) const {
  return std::find(config_.forwarded.begin(), config_.forwarded.end(), port) != config_.forwarded.end();
}

Nanoseconds Nat::lifetime(uint8_t protocol) const {
  return protocol == kTcpProtocol ? std::max(kTcpLifetime, config_.timeout) : config_.timeout;
}

void Nat::forget() {
  by_inside_.clear();
  mappings_.clear();
}

void Nat::drop_expired(Nanoseconds now) {
  if (now < sweep_at_) return;
  sweep_at_ = now + kSweepEvery;
  std::erase_if(mappings_, [&](const auto& entry) {
    if (entry.second.until >= now) return false;
    by_inside_.erase(entry.second.inside);
    return true;
  });
}

uint16_t Nat::free_port(Nanoseconds now, uint8_t protocol, uint16_t wanted) {
  if (mappings_.size() >= kMappingsMost) drop_expired(now);
  if (mappings_.size() >= kMappingsMost) return 0;
  bool preserve = config_.kind != NatKind::kSymmetric;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const auto random = static_cast<uint16_t>(kFirstPort + random_.uniform() * (65536 - kFirstPort));
    const uint16_t port = preserve ? wanted : random;
    preserve = false;
    if (port == 0 || forwards(port)) continue;
    const auto found = mappings_.find({protocol, port});
    if (found == mappings_.end()) return port;
    if (found->second.until >= now) continue;
    by_inside_.erase(found->second.inside);
    mappings_.erase(found);
    return port;
  }
  return 0;
}

uint16_t Nat::map(Nanoseconds now, const InsideKey& inside) {
  const uint8_t protocol = std::get<0>(inside);
  if (const auto known = by_inside_.find(inside); known != by_inside_.end()) {
    if (mappings_.at({protocol, known->second}).until >= now) return known->second;
    mappings_.erase({protocol, known->second});
    by_inside_.erase(known);
  }
  const uint16_t port = free_port(now, protocol, std::get<1>(inside));
  if (port == 0) return 0;
  by_inside_[inside] = port;
  mappings_[{protocol, port}].inside = inside;
  return port;
}

bool Nat::renew(Nanoseconds now, Mapping& mapping, const Peer& peer) {
  mapping.until = now + lifetime(std::get<0>(mapping.inside));
  if (config_.kind == NatKind::kFullCone) return true;
  if (mapping.allowed.size() >= kAllowedMost && now >= mapping.sweep_at) {
    mapping.sweep_at = now + kSweepEvery;
    std::erase_if(mapping.allowed, [&](const auto& entry) { return entry.second < now; });
  }
  if (mapping.allowed.size() >= kAllowedMost && !mapping.allowed.contains(peer)) return false;
  mapping.allowed[peer] = mapping.until;
  return true;
}

// 1. A forwarded port keeps its number. 2. Another one gets its mapping's, which this packet makes or renews.
bool Nat::outbound(Nanoseconds now, Packet& packet) {
  const std::optional<Flow> flow = packet.flow();
  if (!flow || flow->source != config_.inside) return false;
  uint16_t port = flow->source_port;
  if (!forwards(port)) {  // 1
    const Peer peer{flow->destination, flow->destination_port};
    port = map(now, {flow->protocol, port, config_.kind == NatKind::kSymmetric ? peer : Peer{}});  // 2
    if (port == 0) return false;
    if (!renew(now, mappings_.at({flow->protocol, port}), peer)) return false;
  }
  packet.set_source(config_.outside, port);
  return true;
}

bool Nat::inbound(Nanoseconds now, Packet& packet) {
  const std::optional<Flow> flow = packet.flow();
  if (!flow || flow->destination != config_.outside) return false;
  uint16_t port = flow->destination_port;
  if (!forwards(port)) {
    const auto found = mappings_.find({flow->protocol, port});
    if (found == mappings_.end() || found->second.until < now) return false;
    Mapping& mapping = found->second;
    const Nanoseconds until = now + lifetime(flow->protocol);
    if (config_.kind != NatKind::kFullCone) {
      const auto allowed = mapping.allowed.find({flow->source, flow->source_port});
      if (allowed == mapping.allowed.end() || allowed->second < now) return false;
      allowed->second = until;
    }
    mapping.until = until;
    port = std::get<1>(mapping.inside);
  }
  packet.set_destination(config_.inside, port);
  return true;
}

}  // namespace gradwire::emulator
