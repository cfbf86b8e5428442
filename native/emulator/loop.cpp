#include "emulator/loop.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <utility>

#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif

namespace gradwire::emulator {
namespace {

constexpr uint32_t kControl = UINT32_MAX;
constexpr uint32_t kLargest = 40 + 65535;  // IPv6 does not count its header in a packet's length
constexpr int kEvents = 64;                // per poll; the rest is reported by the next one
// Under load, a short sleep collects packets and saves half of the processor time; 150 us is what a run of
// segments is allowed anyway (Link::kRunSeconds). With little traffic each packet is taken at once: exact delays.
constexpr Nanoseconds kRest = 150'000, kWindow = 1'000'000;
constexpr uint64_t kBusyPackets = 6;  // in a window of a millisecond: about 50 Mbit/s of super-packets and their ACKs
constexpr int kReadsPerDevice = 256;  // then read the clock again: due packets must not wait for a flood

// Kernels before 5.11 wait in whole milliseconds only; rounding down and polling again keeps packets on time.
long wait_events(int poll, epoll_event* events, int most, const timespec* timeout) {
  static bool fine = true;
  if (fine) {
    const long count = syscall(SYS_epoll_pwait2, poll, events, most, timeout, nullptr, 0);
    if (count >= 0 || errno != ENOSYS) return count;
    fine = false;
  }
  if (timeout == nullptr) return epoll_wait(poll, events, most, -1);
  return epoll_wait(poll, events, most, static_cast<int>(timeout->tv_sec * 1000 + timeout->tv_nsec / 1'000'000));
}

}  // namespace

Nanoseconds monotonic_now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
}

Loop::Loop(Engine& engine, std::vector<HostDevice> hosts)
    : engine_(engine),
      hosts_(std::move(hosts)),
      drains_(hosts_.size(), monotonic_now()),
      buffer_(sizeof(OffloadHeader) + kLargest),
      poll_(epoll_create1(EPOLL_CLOEXEC)),
      schedule_(open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)) {
  const auto watch = [this](int fd, uint32_t id) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u32 = id;
    if (epoll_ctl(poll_, EPOLL_CTL_ADD, fd, &event) != 0) throw std::runtime_error("epoll");
  };
  watch(STDIN_FILENO, kControl);
  for (uint32_t i = 0; i < hosts_.size(); ++i) {
    by_address_[hosts_[i].address] = static_cast<uint16_t>(i);
    watch(hosts_[i].device, i);
  }
}

Loop::~Loop() {
  close(poll_);
  if (schedule_ >= 0) close(schedule_);
  for (const HostDevice& host : hosts_) {
    close(host.device);
    close(host.network);
  }
}

void Loop::translate(uint32_t host, NatConfig config) {
  by_address_.erase(hosts_[host].address);
  by_address_[config.outside] = static_cast<uint16_t>(host);
  nats_.insert_or_assign(host, Nat(std::move(config)));
}

bool Loop::forget_mappings(uint32_t host) {
  const auto found = nats_.find(host);
  if (found == nats_.end()) return false;
  found->second.forget();
  return true;
}

void Loop::run(const OnLine& on_line) {
  while (true) {
    engine_.advance(monotonic_now(), [this](PacketPtr packet) { deliver(std::move(packet)); });
    wait(engine_.next_event());
    for (uint32_t host : ready_) read_device(host);
    if (control_ready_ && !read_control(on_line)) return;
  }
}

void Loop::wait(Nanoseconds until) {
  if (const Nanoseconds now = monotonic_now(); now >= window_end_) {
    busy_ = moved_ >= kBusyPackets;
    moved_ = 0;
    window_end_ = now + kWindow;
  }
  if (busy_) {
    const timespec rest{0, kRest};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &rest, nullptr);
  }
  static constexpr timespec kAtOnce{};
  const Nanoseconds now = monotonic_now();
  const long count = poll_ready(&kAtOnce);
  if (count >= 0 && count < kEvents) drains_.looked(now, ready_);
  if (count == 0 && !busy_) sleep_until_ready(until);
}

long Loop::poll_ready(const timespec* timeout) {
  epoll_event events[kEvents];
  const long count = wait_events(poll_, events, kEvents, timeout);
  if (count < 0 && errno != EINTR) throw std::runtime_error(std::string("epoll: ") + std::strerror(errno));
  ++counters_.wakeups;
  ready_.clear();
  control_ready_ = false;
  for (long i = 0; i < count; ++i) {
    if (events[i].data.u32 == kControl) {
      control_ready_ = true;
    } else {
      ready_.push_back(events[i].data.u32);
    }
  }
  return count;
}

// The kernel wakes this thread for the first packet; the time until it runs is the emulator's delay, and so is a late
// timer.
void Loop::sleep_until_ready(Nanoseconds until) {
  timespec timeout{};
  if (until != kNever) {
    const Nanoseconds left = std::max<Nanoseconds>(0, until - monotonic_now());
    timeout = {left / 1'000'000'000, left % 1'000'000'000};
  }
  if (poll_ready(until == kNever ? nullptr : &timeout) < 0) return;  // stopped and continued: the delay is unknown
  const Nanoseconds now = monotonic_now();
  drains_.woke(now, std::max(processor_delay(), until == kNever ? 0 : now - until));
}

// How long this thread has waited for a processor since the last call, as counted by the kernel; 0 where it does not.
Nanoseconds Loop::processor_delay() {
  char text[96];
  const ssize_t count = schedule_ < 0 ? -1 : pread(schedule_, text, sizeof text - 1, 0);
  if (count <= 0) return 0;
  text[count] = 0;
  char* second = nullptr;
  std::strtoull(text, &second, 10);  // time on a processor
  const auto total = static_cast<Nanoseconds>(std::strtoull(second, nullptr, 10));
  return total - std::exchange(delayed_, total);
}

bool Loop::read_control(const OnLine& on_line) {
  char chunk[4096];
  const ssize_t count = read(STDIN_FILENO, chunk, sizeof chunk);
  if (count == 0) return false;
  if (count < 0) return errno == EINTR || errno == EAGAIN;
  control_.append(chunk, static_cast<size_t>(count));
  for (size_t end; (end = control_.find('\n')) != std::string::npos;) {
    const std::string line = control_.substr(0, end);
    control_.erase(0, end + 1);
    if (!on_line(line)) return false;
  }
  return true;
}

void Loop::read_device(uint32_t host) {
  for (int i = 0; i < kReadsPerDevice; ++i) {
    const Nanoseconds before = monotonic_now();
    const ssize_t count = read(hosts_[host].device, buffer_.data(), buffer_.size());
    if (count <= static_cast<ssize_t>(sizeof(OffloadHeader))) {
      drains_.found_empty(host, before);
      return;
    }
    // Read after the packet: with an earlier reading, a packet that arrived in between would leave too early.
    const Nanoseconds now = monotonic_now();
    ++moved_;
    ++counters_.received;
    OffloadHeader offload;
    std::memcpy(&offload, buffer_.data(), sizeof offload);
    const auto length = static_cast<uint32_t>(count - static_cast<ssize_t>(sizeof offload));
    auto packet = std::make_unique<Packet>(buffer_.data() + sizeof offload, length, offload);
    if (const auto nat = nats_.find(host); nat != nats_.end() && !nat->second.outbound(now, *packet)) {
      ++counters_.nat_drops;
      continue;
    }
    const auto target = packet->valid() ? by_address_.find(packet->destination()) : by_address_.end();
    if (target == by_address_.end()) {
      ++counters_.unroutable;
      continue;
    }
    packet->source_host = static_cast<uint16_t>(host);
    packet->target_host = target->second;
    packet->waited = drains_.wait_of_next(host, now);
    // Earlier events are handled first, so that the packet meets the queue of this moment.
    engine_.advance(now, [this](PacketPtr earlier) { deliver(std::move(earlier)); });
    if (!engine_.ingress(now, std::move(packet))) ++counters_.unroutable;
  }
}

void Loop::deliver(PacketPtr packet) {
  if (const auto nat = nats_.find(packet->target_host);
      nat != nats_.end() && !nat->second.inbound(packet->due, *packet)) {
    ++counters_.nat_drops;
    return;
  }
  OffloadHeader offload = packet->offload();
  iovec parts[2] = {{&offload, sizeof offload}, {const_cast<uint8_t*>(packet->data()), packet->length()}};
  if (writev(hosts_[packet->target_host].device, parts, 2) < 0) ++counters_.write_errors;
  ++counters_.sent;
  ++moved_;
  const Nanoseconds late = packet->waited + std::max<Nanoseconds>(0, monotonic_now() - packet->due);
  const auto bin = std::lower_bound(kLatenessBounds.begin(), kLatenessBounds.end(), late / 1000);
  counters_.lateness[static_cast<size_t>(bin - kLatenessBounds.begin())] += packet->segments();
  counters_.lateness_sum += static_cast<double>(late) * packet->segments();
  counters_.lateness_max = std::max(counters_.lateness_max, late);
}

}  // namespace gradwire::emulator
