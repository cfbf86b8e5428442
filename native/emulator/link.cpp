#include "emulator/link.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace gradwire::emulator {

Link::Link(LinkValues values, uint64_t seed, uint32_t overhead)
    : values_(values), curve_(values.rate), random_(seed), overhead_(overhead) {}

double Link::wire_bytes(const Packet& packet, uint32_t first, uint32_t last) const {
  double bytes = 0;
  for (uint32_t i = first; i < last; ++i) bytes += packet.segment_bytes(i) + overhead_;
  return bytes;
}

double Link::backlog(Nanoseconds now) const {
  return queue_.empty() ? 0 : std::max(0.0, queued_ - (now > mark_ ? curve_.served(mark_, now) : 0));
}

void Link::offer(Nanoseconds now, PacketPtr packet) {
  const uint32_t segments = packet->segments();
  const bool bounded = !curve_.unlimited();
  double waiting = bounded ? backlog(now) : 0;
  uint32_t begin = 0;
  for (uint32_t i = 0; i < segments; ++i) {
    const uint32_t size = packet->segment_bytes(i);
    ++counters_.offered;
    counters_.offered_bytes += size + overhead_;
    const bool too_big = size > values_.mtu;
    const bool full = bounded && waiting + size + overhead_ > values_.queue;
    if (!too_big && !full) {
      waiting += size + overhead_;
      continue;
    }
    ++(too_big ? counters_.mtu_drops : counters_.queue_drops);
    if (i > begin) enqueue(now, packet->slice(begin, i));
    begin = i + 1;
  }
  if (begin == 0) {
    enqueue(now, std::move(packet));
  } else if (begin < segments) {
    enqueue(now, packet->slice(begin, segments));
  }
  counters_.queue_peak = std::max(counters_.queue_peak, waiting);
}

void Link::enqueue(Nanoseconds now, PacketPtr packet) {
  const double bytes = wire_bytes(*packet, 0, packet->segments());
  queue_.push_back({std::move(packet), bytes, now});
  if (queue_.size() == 1) {
    mark_ = std::max(now, mark_);  // mark_ is ahead when the last packet left later than this one arrived
    queued_ = head_left_ = bytes;
    departure_ = curve_.finish(mark_, head_left_);
  } else {
    queued_ += bytes;
  }
}

PacketPtr Link::finish_head(Nanoseconds at) {
  PacketPtr packet = std::move(queue_.front().packet);
  queue_.pop_front();
  queued_ -= head_left_;
  mark_ = at;
  if (queue_.empty()) {
    queued_ = 0;
    departure_ = kNever;
  } else {
    mark_ = std::max(mark_, queue_.front().came);  // the emulator was late: no packet is served before it arrived
    head_left_ = queue_.front().bytes;
    departure_ = curve_.finish(mark_, head_left_);
  }
  return packet;
}

void Link::settle(Nanoseconds now) {
  if (queue_.empty() || now <= mark_) return;
  const double served = std::min(head_left_, curve_.served(mark_, now));
  head_left_ -= served;
  queued_ -= served;
  mark_ = now;
}

void Link::change(Nanoseconds now, const LinkValues& values) {
  settle(now);
  settle_idle(now);
  if (values.rate != values_.rate) curve_ = RateCurve(values.rate);
  values_ = values;
  if (!queue_.empty()) departure_ = curve_.finish(mark_, head_left_);
}

void Link::replay(Nanoseconds now, RateCurve curve) {
  settle(now);
  settle_idle(now);
  curve_ = std::move(curve);
  if (!queue_.empty()) departure_ = curve_.finish(mark_, head_left_);
}

// The chain's steps for what the link could have served since the last departure besides these bytes, all at once.
void Link::idle(Nanoseconds at, double bytes) {
  if (!curve_.unlimited()) {
    settle_idle(at);
    const double steps = std::floor((could_serve_ - bytes) / (kFullPacket + overhead_));
    if (steps >= 1) {
      const double change = values_.burst_enter + values_.burst_leave, share = values_.burst_enter / change;
      bad_ = random_.uniform() < share + ((bad_ ? 1 : 0) - share) * std::pow(1 - change, steps);
    }
  }
  could_serve_ = 0;
  idle_mark_ = at;
}

void Link::settle_idle(Nanoseconds now) {
  if (values_.burst_enter <= 0 || curve_.unlimited() || now <= idle_mark_) return;
  could_serve_ += curve_.served(idle_mark_, now);
  idle_mark_ = now;
}

bool Link::lost() {
  if (values_.burst_enter > 0) {
    if (random_.uniform() < (bad_ ? values_.burst_leave : values_.burst_enter)) bad_ = !bad_;
    if (bad_ && random_.uniform() < values_.burst_loss) return true;
  }
  return chance(values_.loss);
}

Nanoseconds Link::arrival(Nanoseconds at) {
  Nanoseconds due = at + values_.delay;
  if (values_.jitter > 0) {
    const double age = static_cast<double>(at - jitter_mark_) / static_cast<double>(values_.jitter_memory);
    const double kept = jitter_started_ ? std::exp(-age) : 0;
    jitter_state_ = jitter_state_ * kept + std::sqrt(1 - kept * kept) * random_.normal();
    jitter_mark_ = at;
    jitter_started_ = true;
    const auto swing = static_cast<Nanoseconds>(jitter_state_ * static_cast<double>(values_.jitter));
    due += std::max(swing, -values_.delay);
  }
  last_arrival_ = std::max(last_arrival_, due);
  return last_arrival_;
}

}  // namespace gradwire::emulator
