#include "emulator/engine.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace gradwire::emulator {
namespace {

constexpr auto kLater = [](const auto& a, const auto& b) { return a.at != b.at ? a.at > b.at : a.order > b.order; };

}  // namespace

void Engine::add_link(const LinkValues& values, uint64_t seed, uint32_t overhead) {
  links_.emplace_back(Link(values, seed, overhead), values);
}

void Engine::set_trace(uint32_t link, std::vector<RateStep> steps, Nanoseconds period) {
  links_[link].steps = std::move(steps);
  links_[link].period = period;
}

void Engine::set_path(uint32_t source, uint32_t target, std::vector<uint32_t> links) {
  paths_[static_cast<size_t>(source) * hosts_ + target] = std::move(links);
}

void Engine::push(Nanoseconds at, Kind kind, uint32_t index, PacketPtr packet) {
  events_.push_back({at, order_++, kind, index, round_, std::move(packet)});
  std::push_heap(events_.begin(), events_.end(), kLater);
}

void Engine::announce(uint32_t index) {
  Entry& entry = links_[index];
  const Nanoseconds departure = entry.link.next_departure();
  if (departure == entry.announced) return;
  entry.announced = departure;
  if (departure != kNever) push(departure, Kind::kDeparture, index);
}

void Engine::begin(Nanoseconds now) {
  ++round_;
  for (uint32_t i = 0; i < links_.size(); ++i) {
    Entry& entry = links_[i];
    entry.link.change(now, entry.base);
    const bool traced = !entry.steps.empty();
    entry.link.replay(now, traced ? RateCurve(entry.steps, entry.period, now) : RateCurve(entry.base.rate));
    announce(i);
  }
  for (uint32_t i = 0; i < schedule_.size(); ++i) push(now + schedule_[i].at, Kind::kChange, i);
}

void Engine::set(Nanoseconds now, uint32_t link, const std::function<void(LinkValues&)>& apply) {
  Entry& entry = links_[link];
  const double rate = entry.base.rate;
  apply(entry.base);
  if (entry.base.rate != rate) entry.steps.clear();  // a rate set explicitly ends the replay of a trace
  LinkValues values = entry.link.values();
  apply(values);
  entry.link.change(now, values);
  announce(link);
}

uint32_t Engine::segments_per_run(Nanoseconds now, const std::vector<uint32_t>& path, uint32_t segment) const {
  double most = 1e9;
  for (uint32_t index : path) {
    const Link& link = links_[index].link;
    most = std::min(most, std::floor(link.run_bytes(now) / (segment + link.overhead())));
  }
  return static_cast<uint32_t>(std::max(1.0, most));
}

bool Engine::ingress(Nanoseconds now, PacketPtr packet) {
  const auto& links = path(*packet);
  if (links.empty()) return false;
  packet->hop = 0;
  const uint32_t segments = packet->segments();
  const uint32_t run = segments > 1 ? segments_per_run(now, links, packet->segment_bytes(0)) : 1;
  if (segments <= run) {
    forward(now, std::move(packet));
    return true;
  }
  for (uint32_t first = 0; first < segments; first += run) {
    forward(now, packet->slice(first, std::min(segments, first + run)));
  }
  return true;
}

void Engine::forward(Nanoseconds now, PacketPtr packet) {
  const uint32_t index = path(*packet)[packet->hop];
  links_[index].link.offer(now, std::move(packet));
  announce(index);
}

void Engine::advance(Nanoseconds now, const Deliver& deliver) {
  const auto leave = [this](PacketPtr packet) {
    ++packet->hop;
    const Nanoseconds due = packet->due;
    push(due, Kind::kArrival, 0, std::move(packet));
  };
  while (!events_.empty() && events_.front().at <= now) {
    std::pop_heap(events_.begin(), events_.end(), kLater);
    Event event = std::move(events_.back());
    events_.pop_back();
    if (event.kind == Kind::kDeparture) {
      Entry& entry = links_[event.index];
      if (entry.announced != event.at) continue;  // outdated by a change of rate
      entry.announced = kNever;
      entry.link.poll(event.at, leave);
      announce(event.index);
    } else if (event.kind == Kind::kChange) {
      if (event.round != round_) continue;
      const Change& change = schedule_[event.index];
      LinkValues values = links_[change.link].link.values();
      change.apply(values);
      links_[change.link].link.change(event.at, values);
      announce(change.link);
    } else if (event.packet->hop < path(*event.packet).size()) {
      forward(event.at, std::move(event.packet));
    } else {
      deliver(std::move(event.packet));
    }
  }
}

}  // namespace gradwire::emulator
