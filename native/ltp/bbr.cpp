#include "ltp/bbr.h"

#include <algorithm>
#include <limits>

#include "ltp/pacer.h"

namespace gradwire::ltp {
namespace {

constexpr double kStartupGain = 2.885;  // 2 / ln 2: the least gain that doubles the rate every round
// Above 1 to allow for delayed and bunched acknowledgements. With BBR's own 2, two flows keep a full queue of one
// bandwidth-delay product permanently (0.86 / 0.11 of the link); with 1.65 they converge to nearly equal shares.
constexpr double kWindowGain = 1.65;
constexpr std::array<double, 8> kCycle{1.25, 0.75, 1, 1, 1, 1, 1, 1};
// When both directions carry data, ACKs wait behind the peer's data. This is not our queue: if the window did not allow
// for it, sending would stop early, and the rate measured then would shrink the window further. At most 8 RTprop are
// allowed; less than an eighth of one is bunching of ACKs.
constexpr Time kReverseMost = 8, kReverseLeast = 8;
constexpr double kGrowth = 1.25;  // the path is full when the rate grows less than this for three rounds
constexpr Time kRtpropWindow = 10 * kSecond;
constexpr Time kProbeRttTime = 200 * kMillisecond;
constexpr double kLeastWindowPackets = 4;
// A packet sent while no more than this part of a product was in flight finds at most as much of our own queue, and so
// measures RTprop as well as a probe does. Training sends and then computes: without this rule the first exchange after
// every pause of more than the RTprop window would run into a probe (500 ms instead of 104 at a round trip of 80).
constexpr double kQuietShare = 1.0 / 8;
// What a round trip takes beyond RTprop without any queue: the peer's ACK delay, collecting a burst, scheduling of two
// threads. Without it the window starves the sender on short round trips: it measures its own rate, and rate and window
// shrink together (with 0.75 ms, incast at 1 ms went from 25 to 800 ms a transfer within twelve transfers).
constexpr Time kLoopSlack = 1500 * kMicrosecond;
// Loss is congestion when every round trip of its round shows a queue. It reduces the window's ceiling by CUBIC's
// factor, never below one bandwidth-delay product, so that a single flow under random loss keeps the link full. The
// ceiling grows by a constant: with proportional growth the larger of two flows stays larger.
constexpr double kQueueEvidence = 1.3;  // the probing of a single flow queues a quarter of RTprop and drains it again
constexpr double kCeilingCut = 0.7;
constexpr double kCeilingGrowth = 4;  // packets per round
// For startup into a queue too short to show in round trips: no random loss that LTP is meant for is this high.
constexpr double kStartupLoss = 0.2;
// One lost packet in a round of three does not show a queue; ending startup because of it would leave a very slow
// connection.
constexpr double kStartupLossPackets = 8;

}  // namespace

Bbr::Bbr(std::uint64_t packet, Time rtt)
    : packet_(static_cast<double>(packet)),
      pacing_gain_(kStartupGain),
      window_gain_(kStartupGain),
      first_rate_(static_cast<double>(kInitialPackets) * packet_ * kSecond /
                  static_cast<double>(std::max<Time>(rtt, kMillisecond))),
      rtprop_(std::max<Time>(rtt, kMicrosecond)),
      ceiling_(std::numeric_limits<double>::infinity()) {}

// Until the path was full once, samples may measure a few control frames and not the path: a connection that has only
// received so far must not start to send at the rate of its own CLOSE frames.
double Bbr::best_rate() const {
  double best = *std::max_element(rates_.begin(), rates_.end());
  return pipe_filled_ && best > 0 ? best : std::max(best, first_rate_);
}

double Bbr::product(double gain) const { return gain * best_rate() * static_cast<double>(rtprop_) / kSecond; }

double Bbr::pacing_rate() const { return pacing_gain_ * best_rate(); }

std::uint64_t Bbr::window() const {
  double least = kLeastWindowPackets * packet_;
  // With so little in flight, flows that probe together see the true RTprop; at half a product the later flow keeps a
  // larger one.
  if (mode_ == Mode::probe_rtt) return static_cast<std::uint64_t>(least);
  double slack =
      std::clamp(best_rate() * static_cast<double>(kLoopSlack) / kSecond, 6 * packet_, 3 * Pacer::kBurstMost);
  Time waiting = reverse_queue_ < rtprop_ / kReverseLeast ? 0 : std::min(reverse_queue_, kReverseMost * rtprop_);
  double reverse = best_rate() * static_cast<double>(waiting) / kSecond;
  double wanted = std::min(product(window_gain_) + slack, ceiling_) + reverse;
  // Before the first rate sample the window is the initial one; during startup it never falls below it.
  if (mode_ == Mode::startup) wanted = std::max(wanted, static_cast<double>(kInitialPackets) * packet_);
  return static_cast<std::uint64_t>(std::max(least, wanted));
}

void Bbr::on_sent(Time, std::uint64_t, std::uint64_t in_flight) {
  most_in_flight_ = std::max(most_in_flight_, in_flight);
}

// Nothing to do: the rate filter expires by itself, and the probe timer limits what is sent into a silent path.
void Bbr::on_timeout(Time) {}

void Bbr::on_ack(const AckSample& sample) {
  reverse_queue_ = sample.reverse_queue;
  count_rounds(sample);
  update_rate(sample);
  update_rtprop(sample);
  update_ceiling(sample);
  check_full_pipe(sample);
  if (mode_ == Mode::startup && pipe_filled_) enter(Mode::drain, sample.now);
  if (mode_ == Mode::drain && static_cast<double>(sample.in_flight) <= product(1))
    enter(Mode::probe_bandwidth, sample.now);
  if (mode_ == Mode::probe_bandwidth) advance_cycle(sample);
  run_probe_rtt(sample);
}

void Bbr::count_rounds(const AckSample& sample) {
  round_began_ = sample.prior_delivered >= next_round_;
  if (!round_began_) return;
  next_round_ = sample.delivered;
  ++round_;
}

// Whether the sample measures the path. Packets sent while RTprop is probed are limited by that probe.
bool Bbr::path_limited(const AckSample& sample) const {
  return sample.rate > 0 && !sample.app_limited && mode_ != Mode::probe_rtt;
}

// Only rounds that measured the path advance the filter: a round with little to send neither ages a maximum nor renews
// it.
void Bbr::update_rate(const AckSample& sample) {
  if (path_limited(sample)) {
    if (slot_round_ != round_) {
      slot_round_ = round_;
      slot_ = (slot_ + 1) % rates_.size();
      rates_[slot_] = 0;
    }
    rates_[slot_] = std::max(rates_[slot_], sample.rate);
  } else if (sample.rate > *std::max_element(rates_.begin(), rates_.end())) {
    // An application-limited sample shows that the path carries at least this much.
    rates_[slot_] = sample.rate;
  }
}

bool Bbr::sent_into_quiet(const AckSample& sample) const {
  return static_cast<double>(sample.sent_in_flight) <= std::max(kLeastWindowPackets * packet_, product(kQuietShare));
}

void Bbr::update_rtprop(const AckSample& sample) {
  if (sample.rtt <= 0) return;
  round_least_rtt_ = std::min(round_least_rtt_, sample.rtt);
  if (mode_ == Mode::probe_rtt && probe_rtt_until_ != kNever) probe_least_ = std::min(probe_least_, sample.rtt);
  bool renewed = sample.now - rtprop_at_ > kRtpropWindow && sent_into_quiet(sample);
  if (!rtprop_known_ || sample.rtt <= rtprop_ || renewed) {
    rtprop_ = sample.rtt;
    rtprop_at_ = sample.now;
    rtprop_known_ = true;
  }
}

void Bbr::update_ceiling(const AckSample& sample) {
  round_acked_ += sample.acked;
  round_lost_ += sample.lost;
  phase_lost_ += sample.lost;
  if (!round_began_) return;
  double share = round_lost_ ? static_cast<double>(round_lost_) / static_cast<double>(round_lost_ + round_acked_) : 0;
  bool queue = round_least_rtt_ != kNever &&
               static_cast<double>(round_least_rtt_) > kQueueEvidence * static_cast<double>(rtprop_);
  if (round_lost_ && queue) {
    double used = std::min(ceiling_, static_cast<double>(most_in_flight_));
    ceiling_ = std::max(product(1), kCeilingCut * used);
  } else {
    ceiling_ += kCeilingGrowth * packet_;
  }
  bool heavy = share > kStartupLoss && static_cast<double>(round_lost_) >= kStartupLossPackets * packet_;
  if (mode_ == Mode::startup && heavy) pipe_filled_ = true;
  round_acked_ = round_lost_ = most_in_flight_ = 0;
  round_least_rtt_ = kNever;
}

void Bbr::check_full_pipe(const AckSample& sample) {
  if (pipe_filled_ || full_round_ == round_ || !path_limited(sample)) return;
  full_round_ = round_;
  if (best_rate() >= kGrowth * full_rate_) {
    full_rate_ = best_rate();
    full_rounds_ = 0;
  } else if (++full_rounds_ >= 3) {
    pipe_filled_ = true;
  }
}

void Bbr::enter(Mode mode, Time now) {
  mode_ = mode;
  window_gain_ = mode == Mode::startup || mode == Mode::drain ? kStartupGain : kWindowGain;
  pacing_gain_ = mode == Mode::startup ? kStartupGain : mode == Mode::drain ? 1 / kStartupGain : 1;
  if (mode == Mode::probe_bandwidth) {
    // Any phase except the draining one, chosen by the clock so that flows that start together do not probe together.
    phase_ = 2 + static_cast<int>(static_cast<std::uint64_t>(now / kMicrosecond) % (kCycle.size() - 2));
    phase_at_ = now;
    phase_lost_ = 0;
    pacing_gain_ = kCycle[static_cast<std::size_t>(phase_)];
  }
}

void Bbr::advance_cycle(const AckSample& sample) {
  bool elapsed = sample.now - phase_at_ > rtprop_;
  bool next = elapsed;
  double in_flight = static_cast<double>(sample.in_flight);
  if (phase_ == 0)
    next = elapsed && (phase_lost_ > 0 || in_flight >= std::min(product(kCycle[0]), ceiling_) || sample.app_limited);
  if (phase_ == 1) next = elapsed || in_flight <= product(1);
  if (!next) return;
  phase_ = (phase_ + 1) % static_cast<int>(kCycle.size());
  phase_at_ = sample.now;
  phase_lost_ = 0;
  pacing_gain_ = kCycle[static_cast<std::size_t>(phase_)];
}

void Bbr::run_probe_rtt(const AckSample& sample) {
  if (mode_ != Mode::probe_rtt) {
    if (sample.now - rtprop_at_ <= kRtpropWindow || !rtprop_known_ || mode_ == Mode::startup) return;
    enter(Mode::probe_rtt, sample.now);
    probe_rtt_until_ = probe_least_ = kNever;
    return;
  }
  // The time counts from when our own queue is empty: before that, round trips measure the queue.
  if (probe_rtt_until_ == kNever && sample.in_flight <= window())
    probe_rtt_until_ = sample.now + std::max(kProbeRttTime, rtprop_);
  if (sample.now < probe_rtt_until_ || probe_least_ == kNever) return;
  rtprop_ = probe_least_;
  rtprop_at_ = sample.now;
  enter(pipe_filled_ ? Mode::probe_bandwidth : Mode::startup, sample.now);
}

}  // namespace gradwire::ltp
