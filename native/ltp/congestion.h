// Congestion: the interface of congestion control. The connection reports events (`on_*`); the policy sets a window and
// a pacing rate. One policy, one file.
#pragma once
#include <cstdint>
#include <memory>

#include "core/time.h"

namespace gradwire::ltp {

// What one ACK frame reported, after loss detection.
struct AckSample {
  Time now = 0;
  std::uint64_t acked = 0;            // bytes newly acknowledged
  std::uint64_t lost = 0;             // bytes newly declared lost
  Time lost_sent = 0;                 // when the newest of those was sent
  std::uint64_t in_flight = 0;        // after both
  std::uint64_t delivered = 0;        // total since the start
  std::uint64_t prior_delivered = 0;  // total when the newest acknowledged packet was sent
  Time sent = 0;                      // when that packet was sent
  std::uint64_t sent_in_flight = 0;   // bytes in flight then, with its own
  Time rtt = 0;                       // of that packet, less the peer's delay; 0 when not measurable
  double rate = 0;                    // delivery rate in bytes per second; 0 when not measurable
  Time reverse_queue = 0;             // queueing delay of ACKs on the reverse path, behind the other direction's data
  bool app_limited = false;           // the rate shows what was sent, not what the path carries
};

class Congestion {
 public:
  virtual ~Congestion() = default;
  virtual void on_sent(Time now, std::uint64_t bytes, std::uint64_t in_flight) = 0;
  virtual void on_ack(const AckSample& sample) = 0;
  // Nothing was acknowledged for a probe timeout.
  virtual void on_timeout(Time now) = 0;
  virtual std::uint64_t window() const = 0;
  // Bytes per second.
  virtual double pacing_rate() const = 0;
  // The bottleneck's rate once the path was full; 0 before.
  virtual double bottleneck() const = 0;
  virtual const char* name() const = 0;
};

enum class CongestionKind : std::uint8_t { bbr, cubic };

// `rtt` is the one of the handshake; it sets the first pacing rate.
std::unique_ptr<Congestion> make_congestion(CongestionKind kind, std::uint64_t packet, Time rtt);

// 32 full packets start a connection: about 45 KB, three times TCP's 10 packets of RFC 6928, because gradients
// are large and pacing spreads the first window over a round trip.
inline constexpr std::uint64_t kInitialPackets = 32;

}  // namespace gradwire::ltp
