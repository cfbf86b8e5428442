#include "ltp/cubic.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gradwire::ltp {
namespace {

constexpr double kC = 0.4;     // RFC 9438 section 5
constexpr double kBeta = 0.7;  // RFC 9438 section 4.6
constexpr double kReno = 3 * (1 - kBeta) / (1 + kBeta);
constexpr double kLeastPackets = 2;

}  // namespace

Cubic::Cubic(std::uint64_t packet, Time rtt)
    : packet_(static_cast<double>(packet)),
      window_(static_cast<double>(kInitialPackets) * packet_),
      threshold_(std::numeric_limits<double>::infinity()),
      srtt_(std::max<Time>(rtt, kMicrosecond)) {}

// The window is spread over a round trip; twice as fast in slow start, so that pacing does not limit growth.
double Cubic::pacing_rate() const {
  return (slow_start_ ? 2.0 : 1.25) * window_ * kSecond / static_cast<double>(srtt_);
}

void Cubic::on_ack(const AckSample& sample) {
  if (sample.rtt > 0) srtt_ += (sample.rtt - srtt_) / 8;
  srtt_ = std::max<Time>(srtt_, kMicrosecond);
  if (sample.rate > 0) rate_ = std::max(rate_ * 0.9, sample.rate);
  // Once per round trip: only the loss of a packet sent after the last reduction counts.
  if (sample.lost && sample.lost_sent > reduced_at_) return reduce(sample.now);
  if (sample.app_limited && static_cast<double>(sample.in_flight) < window_ / 2) return;
  if (window_ < threshold_) {
    window_ += static_cast<double>(sample.acked);
  } else {
    grow(sample);
  }
}

void Cubic::grow(const AckSample& sample) {
  slow_start_ = false;
  double packets = window_ / packet_;
  if (!growing_since_) {
    growing_since_ = sample.now;
    friendly_ = packets;
    plateau_in_ = largest_ > packets ? std::cbrt((largest_ - packets) / kC) : 0;
    if (largest_ < packets) largest_ = packets;
  }
  double t = static_cast<double>(sample.now - growing_since_ + srtt_) / kSecond - plateau_in_;
  double target = std::clamp(kC * t * t * t + largest_, packets, 1.5 * packets);
  double acked = static_cast<double>(sample.acked) / packet_;
  friendly_ += kReno * acked / packets;
  packets += (target - packets) / packets * acked;
  window_ = std::max(packets, friendly_) * packet_;
}

void Cubic::reduce(Time now) {
  double packets = window_ / packet_;
  largest_ = packets < largest_ ? packets * (1 + kBeta) / 2 : packets;  // fast convergence
  window_ = std::max(window_ * kBeta, kLeastPackets * packet_);
  threshold_ = window_;
  slow_start_ = false;
  reduced_at_ = now;
  growing_since_ = 0;
}

void Cubic::on_timeout(Time now) {
  reduce(now);
  window_ = kLeastPackets * packet_;
}

}  // namespace gradwire::ltp
