// Bbr: BBR-like congestion control: send at the measured bottleneck rate (BtlBw), keep about one bandwidth-delay
// product (BtlBw x RTprop) in flight, and do not mistake random loss for congestion. After Cardwell et al., "BBR:
// congestion-based congestion control" (2016), with one change for sharing a link with loss-based flows: loss
// together with a standing queue lowers a ceiling on the window (`ceiling_`), loss alone does not.
#pragma once
#include <array>

#include "ltp/congestion.h"

namespace gradwire::ltp {

class Bbr : public Congestion {
 public:
  Bbr(std::uint64_t packet, Time rtt);
  void on_sent(Time now, std::uint64_t bytes, std::uint64_t in_flight) override;
  void on_ack(const AckSample& sample) override;
  void on_timeout(Time now) override;
  std::uint64_t window() const override;
  double pacing_rate() const override;
  double bottleneck() const override { return pipe_filled_ ? best_rate() : 0; }
  const char* name() const override { return "bbr"; }

 private:
  enum class Mode { startup, drain, probe_bandwidth, probe_rtt };

  double best_rate() const;
  double product(double gain) const;  // gain x BtlBw x RTprop, in bytes
  void count_rounds(const AckSample& sample);
  bool path_limited(const AckSample& sample) const;
  bool sent_into_quiet(const AckSample& sample) const;
  void update_rate(const AckSample& sample);
  void update_rtprop(const AckSample& sample);
  void update_ceiling(const AckSample& sample);
  void check_full_pipe(const AckSample& sample);
  void enter(Mode mode, Time now);
  void advance_cycle(const AckSample& sample);
  void run_probe_rtt(const AckSample& sample);

  double packet_;
  Mode mode_ = Mode::startup;
  double pacing_gain_;
  double window_gain_;
  // Max filter over the last ten rounds in which the path was the limit, one slot per round.
  std::array<double, 10> rates_{};
  std::size_t slot_ = 0;
  std::uint64_t slot_round_ = 0, full_round_ = 0;
  double first_rate_;
  Time rtprop_;
  Time rtprop_at_ = 0;
  Time reverse_queue_ = 0;
  bool rtprop_known_ = false;
  // Rounds are counted in deliveries, not in time.
  std::uint64_t round_ = 0;
  std::uint64_t next_round_ = 0;
  bool round_began_ = false;
  double full_rate_ = 0;
  int full_rounds_ = 0;
  bool pipe_filled_ = false;
  int phase_ = 0;
  Time phase_at_ = 0;
  Time probe_rtt_until_ = kNever;  // kNever: still draining
  Time probe_least_ = kNever;      // the shortest round trip since it was drained
  std::uint64_t round_acked_ = 0, round_lost_ = 0, phase_lost_ = 0, most_in_flight_ = 0;
  Time round_least_rtt_ = kNever;
  double ceiling_;
};

}  // namespace gradwire::ltp
