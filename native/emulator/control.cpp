#include "emulator/control.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <sstream>
#include <stdexcept>

#include "emulator/interface.h"

namespace gradwire::emulator {
namespace {

double number(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != 0) throw std::runtime_error("'" + text + "' is not a number");
  return value;
}

uint64_t whole(const std::string& text) {
  char* end = nullptr;
  const uint64_t value = std::strtoull(text.c_str(), &end, 10);
  if (text.empty() || *end != 0) throw std::runtime_error("'" + text + "' is not a whole number");
  return value;
}

const std::map<std::string, void (*)(LinkValues&, double)>& setters() {
  static const std::map<std::string, void (*)(LinkValues&, double)> table = {
      {"rate", [](LinkValues& v, double x) { v.rate = x; }},
      {"delay", [](LinkValues& v, double x) { v.delay = static_cast<Nanoseconds>(x); }},
      {"jitter", [](LinkValues& v, double x) { v.jitter = static_cast<Nanoseconds>(x); }},
      {"jitter_memory", [](LinkValues& v, double x) { v.jitter_memory = static_cast<Nanoseconds>(x); }},
      {"loss", [](LinkValues& v, double x) { v.loss = x; }},
      {"burst_enter", [](LinkValues& v, double x) { v.burst_enter = x; }},
      {"burst_leave", [](LinkValues& v, double x) { v.burst_leave = x; }},
      {"burst_loss", [](LinkValues& v, double x) { v.burst_loss = x; }},
      {"reorder", [](LinkValues& v, double x) { v.reorder = x; }},
      {"reorder_by", [](LinkValues& v, double x) { v.reorder_by = static_cast<Nanoseconds>(x); }},
      {"duplicate", [](LinkValues& v, double x) { v.duplicate = x; }},
      {"queue", [](LinkValues& v, double x) { v.queue = x; }},
      {"mtu", [](LinkValues& v, double x) { v.mtu = static_cast<uint32_t>(x); }},
  };
  return table;
}

std::vector<std::string> from(const std::vector<std::string>& words, size_t first) {
  if (words.size() < first) throw std::runtime_error("too few words after '" + words[0] + "'");
  return {words.begin() + static_cast<ptrdiff_t>(first), words.end()};
}

NatKind parse_kind(const std::string& word) {
  static const std::map<std::string, NatKind> kinds = {{"full-cone", NatKind::kFullCone},
                                                       {"port-restricted", NatKind::kPortRestricted},
                                                       {"symmetric", NatKind::kSymmetric}};
  const auto found = kinds.find(word);
  if (found == kinds.end()) throw std::runtime_error("unknown kind of NAT '" + word + "'");
  return found->second;
}

NatConfig parse_nat(const std::vector<std::string>& words, const HostConfig& host) {
  NatConfig nat{parse_kind(words[2]), parse_address(host.address), parse_address(words[3]),
                static_cast<Nanoseconds>(whole(words[4])), whole(words[5])};
  for (const std::string& word : from(words, 6)) nat.forwarded.push_back(static_cast<uint16_t>(whole(word)));
  return nat;
}

RateStep parse_step(const std::string& word) {
  const size_t colon = word.find(':');
  if (colon == std::string::npos) throw std::runtime_error("'" + word + "' is not AT:RATE");
  return {static_cast<Nanoseconds>(whole(word.substr(0, colon))), number(word.substr(colon + 1))};
}

}  // namespace

std::vector<std::string> split(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

std::function<void(LinkValues&)> parse_values(const std::vector<std::string>& words) {
  std::vector<std::pair<void (*)(LinkValues&, double), double>> steps;
  for (const std::string& word : words) {
    const size_t equals = word.find('=');
    const auto setter = setters().find(word.substr(0, equals));
    if (equals == std::string::npos || setter == setters().end()) {
      throw std::runtime_error("unknown value '" + word + "'");
    }
    steps.emplace_back(setter->second, number(word.substr(equals + 1)));
  }
  return [steps](LinkValues& values) {
    for (const auto& [set, value] : steps) set(values, value);
  };
}

void Description::apply(const std::string& line) {
  const std::vector<std::string> words = split(line);
  if (words.empty()) return;
  const std::string& verb = words[0];
  if (verb == "host" && words.size() >= 6) {
    const auto prefix = static_cast<int>(whole(words[3])), mtu = static_cast<int>(whole(words[4]));
    hosts_.push_back({words[1], words[2], words[5], prefix, mtu, false, from(words, 6)});
  } else if (verb == "nat" && words.size() >= 6 && whole(words[1]) < hosts_.size()) {
    const auto host = static_cast<uint32_t>(whole(words[1]));
    for (HostConfig& each : hosts_) each.default_route = true;  // packets to private addresses leave the others, too
    nats_[host] = parse_nat(words, hosts_[host]);
  } else if (verb == "link" && words.size() >= 3) {
    LinkLine link{{}, whole(words[1]), static_cast<uint32_t>(whole(words[2]))};
    parse_values(from(words, 3))(link.values);
    links_.push_back(link);
  } else if (verb == "trace" && words.size() >= 4) {
    TraceLine trace{static_cast<uint32_t>(whole(words[1])), static_cast<Nanoseconds>(whole(words[2])), {}};
    for (const std::string& word : from(words, 3)) trace.steps.push_back(parse_step(word));
    traces_.push_back(std::move(trace));
  } else if (verb == "route" && words.size() >= 4) {
    RouteLine route{static_cast<uint32_t>(whole(words[1])), static_cast<uint32_t>(whole(words[2])), {}};
    for (const std::string& word : from(words, 3)) route.links.push_back(static_cast<uint32_t>(whole(word)));
    routes_.push_back(std::move(route));
  } else if (verb == "change" && words.size() >= 4) {
    changes_.push_back({static_cast<Nanoseconds>(whole(words[1])), static_cast<uint32_t>(whole(words[2])),
                        parse_values(from(words, 3))});
  } else {
    throw std::runtime_error("not understood: '" + line + "'");
  }
}

std::unique_ptr<Engine> Description::build() const {
  auto engine = std::make_unique<Engine>(static_cast<uint32_t>(hosts_.size()));
  const auto known = [this](uint32_t link) {
    if (link >= links_.size()) throw std::runtime_error("there is no link " + std::to_string(link));
  };
  for (const LinkLine& link : links_) engine->add_link(link.values, link.seed, link.overhead);
  for (const TraceLine& trace : traces_) {
    known(trace.link);
    engine->set_trace(trace.link, trace.steps, trace.period);
  }
  for (const RouteLine& route : routes_) {
    if (std::max(route.source, route.target) >= hosts_.size()) throw std::runtime_error("no such host in a route");
    for (uint32_t link : route.links) known(link);
    engine->set_path(route.source, route.target, route.links);
  }
  for (const Change& change : changes_) {
    known(change.link);
    engine->add_change(change);
  }
  return engine;
}

std::string stats_json(const Engine& engine, const Loop& loop, bool realtime) {
  const LoopCounters& count = loop.counters();
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  uint64_t packets = 0;
  for (uint64_t bin : count.lateness) packets += bin;
  std::ostringstream out;
  out << "{\"received\":" << count.received << ",\"sent\":" << count.sent << ",\"unroutable\":" << count.unroutable
      << ",\"nat_drops\":" << count.nat_drops << ",\"write_errors\":" << count.write_errors
      << ",\"wakeups\":" << count.wakeups << ",\"cpu_seconds\":" << seconds(usage.ru_utime) + seconds(usage.ru_stime)
      << ",\"realtime\":" << (realtime ? "true" : "false") << ",\"lateness_bounds_us\":[";
  for (size_t i = 0; i < kLatenessBounds.size(); ++i) out << (i ? "," : "") << kLatenessBounds[i];
  out << "],\"lateness\":[";
  for (size_t i = 0; i < count.lateness.size(); ++i) out << (i ? "," : "") << count.lateness[i];
  out << "],\"lateness_max_us\":" << static_cast<double>(count.lateness_max) / 1e3
      << ",\"lateness_mean_us\":" << (packets ? count.lateness_sum / static_cast<double>(packets) / 1e3 : 0.0)
      << ",\"device_drops\":[";
  for (size_t i = 0; i < loop.hosts().size(); ++i) out << (i ? "," : "") << device_drops(loop.hosts()[i]);
  out << "],\"links\":[";
  for (size_t i = 0; i < engine.links(); ++i) {
    const LinkCounters& link = engine.link(i).counters();
    out << (i ? "," : "") << "{\"offered\":" << link.offered << ",\"offered_bytes\":" << link.offered_bytes
        << ",\"delivered\":" << link.delivered << ",\"delivered_bytes\":" << link.delivered_bytes
        << ",\"queue_drops\":" << link.queue_drops << ",\"loss_drops\":" << link.loss_drops
        << ",\"mtu_drops\":" << link.mtu_drops << ",\"reordered\":" << link.reordered
        << ",\"duplicated\":" << link.duplicated << ",\"queue_peak\":" << static_cast<uint64_t>(link.queue_peak) << "}";
  }
  out << "]}";
  return out.str();
}

}  // namespace gradwire::emulator
