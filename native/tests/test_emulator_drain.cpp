// Which waits of the emulator count as lateness, in virtual time.
#include "emulator/drain_clock.h"
#include "tests/check.h"

using namespace gradwire::emulator;

namespace {

constexpr Nanoseconds kUs = 1000, kMs = 1000 * kUs;

void the_gap_between_two_drains_counts() {
  DrainClock clock(2, 0);
  clock.found_empty(0, 10 * kMs);
  clock.found_empty(1, 10 * kMs);
  CHECK(clock.gap(0, 15 * kMs) == 5 * kMs);
  clock.found_empty(1, 14 * kMs);
  CHECK(clock.gap(0, 15 * kMs) == 5 * kMs);  // each device has its own
  CHECK(clock.gap(1, 15 * kMs) == 1 * kMs);
}

void a_poll_shows_that_the_other_devices_are_empty() {
  DrainClock clock(3, 0);
  clock.looked(10 * kMs, {1});
  CHECK(clock.gap(0, 11 * kMs) == 1 * kMs);
  CHECK(clock.gap(1, 11 * kMs) == 11 * kMs);
  CHECK(clock.gap(2, 11 * kMs) == 1 * kMs);
}

void sleeping_until_a_packet_arrives_does_not_count() {
  DrainClock clock(1, 0);
  clock.woke(1000 * kMs, 20 * kUs);
  CHECK(clock.gap(0, 1000 * kMs) == 20 * kUs);
}

void waiting_for_a_processor_counts() {
  DrainClock clock(1, 0);
  clock.found_empty(0, 100 * kMs);
  clock.woke(150 * kMs, 30 * kMs);
  CHECK(clock.gap(0, 151 * kMs) == 31 * kMs);
}

// More than one wait for the processor may lie in what the kernel counted: none reaches before the device was empty.
void no_wait_is_longer_than_the_time_since_the_device_was_empty() {
  DrainClock clock(1, 0);
  clock.found_empty(0, 100 * kMs);
  clock.woke(101 * kMs, 30 * kMs);
  CHECK(clock.gap(0, 101 * kMs) == 1 * kMs);
}

void arrivals_are_assumed_evenly_over_the_gap() {
  DrainClock clock(1, 0);
  int late = 0;
  for (int i = 0; i < 1000; ++i) {
    const Nanoseconds wait = clock.wait_of_next(0, 2 * kMs);
    CHECK(wait >= 0 && wait <= 2 * kMs);
    late += wait > kMs;
  }
  CHECK(late > 490 && late < 510);
}

}  // namespace

int main() {
  the_gap_between_two_drains_counts();
  a_poll_shows_that_the_other_devices_are_empty();
  sleeping_until_a_packet_arrives_does_not_count();
  waiting_for_a_processor_counts();
  no_wait_is_longer_than_the_time_since_the_device_was_empty();
  arrivals_are_assumed_evenly_over_the_gap();
  return gradwire::test::finish();
}
