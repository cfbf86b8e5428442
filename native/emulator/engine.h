// Engine: the network: links, the path of every host pair through them, and their events in time order. No clock.
//
// In:  ingress(now, packet) from a host, change/schedule for link values.
// Out: advance(now, deliver) hands over each packet that has reached its host, in order of `due`.
#pragma once
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "emulator/link.h"

namespace gradwire::emulator {

// A change of some of a link's values, at a time since the schedule's start.
struct Change {
  Nanoseconds at;
  uint32_t link;
  std::function<void(LinkValues&)> apply;
};

class Engine {
 public:
  explicit Engine(uint32_t hosts) : hosts_(hosts), paths_(static_cast<size_t>(hosts) * hosts) {}

  void add_link(const LinkValues& values, uint64_t seed, uint32_t overhead);
  void set_trace(uint32_t link, std::vector<RateStep> steps, Nanoseconds period);
  void set_path(uint32_t source, uint32_t target, std::vector<uint32_t> links);
  void add_change(Change change) { schedule_.push_back(std::move(change)); }

  // Puts every link back to its own values and starts traces and schedule from their beginning.
  void begin(Nanoseconds now);
  // A lasting change, made while running.
  void set(Nanoseconds now, uint32_t link, const std::function<void(LinkValues&)>& apply);

  // False when there is no path from source to target; the packet is dropped.
  bool ingress(Nanoseconds now, PacketPtr packet);
  using Deliver = std::function<void(PacketPtr)>;
  void advance(Nanoseconds now, const Deliver& deliver);
  Nanoseconds next_event() const { return events_.empty() ? kNever : events_.front().at; }

  uint32_t hosts() const { return hosts_; }
  size_t links() const { return links_.size(); }
  const Link& link(size_t index) const { return links_[index].link; }

 private:
  enum class Kind : uint8_t { kDeparture, kArrival, kChange };
  struct Event {
    Nanoseconds at;
    uint64_t order;
    Kind kind;
    uint32_t index;  // link, or place in the schedule
    uint32_t round;  // which begin() a scheduled change belongs to
    PacketPtr packet;
  };
  struct Entry {
    Entry(Link line, const LinkValues& values) : link(std::move(line)), base(values) {}
    Link link;
    LinkValues base;
    std::vector<RateStep> steps;
    Nanoseconds period = 0;
    Nanoseconds announced = kNever;  // the departure that is in the heap
  };

  void push(Nanoseconds at, Kind kind, uint32_t index, PacketPtr packet = nullptr);
  void announce(uint32_t link);
  void forward(Nanoseconds now, PacketPtr packet);
  uint32_t segments_per_run(Nanoseconds now, const std::vector<uint32_t>& path, uint32_t segment) const;
  std::vector<uint32_t>& path(const Packet& packet) {
    return paths_[static_cast<size_t>(packet.source_host) * hosts_ + packet.target_host];
  }

  uint32_t hosts_;
  std::deque<Entry> links_;
  std::vector<std::vector<uint32_t>> paths_;
  std::vector<Change> schedule_;
  std::vector<Event> events_;  // a heap, earliest first
  uint64_t order_ = 0;
  uint32_t round_ = 0;
};

}  // namespace gradwire::emulator
