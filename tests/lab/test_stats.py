"""The verdict reports a lab that could not keep up, and nothing else."""

from __future__ import annotations

import msgspec

from gradwire.lab import EmulatorStats

GOOD = {
    "received": 100, "sent": 100, "unroutable": 0, "write_errors": 0, "wakeups": 10, "cpu_seconds": 0.5,
    "realtime": True, "lateness_bounds_us": [50, 1000, 5000], "lateness": [9000, 900, 100, 0],
    "lateness_max_us": 1200.0, "lateness_mean_us": 60.0, "device_drops": [0, 0],
    "links": [{"offered": 10, "offered_bytes": 100, "delivered": 8, "delivered_bytes": 80, "queue_drops": 1,
               "loss_drops": 1, "mtu_drops": 0, "queue_peak": 50}],
}  # fmt: skip


def stats(**changes: object) -> EmulatorStats:
    return msgspec.convert(GOOD | changes, EmulatorStats)


def test_a_lab_that_kept_up_has_no_problems() -> None:
    assert stats().verdict == "the lab kept up"
    assert stats().late_share == 0.01


def test_late_dropped_and_refused_packets_are_each_reported() -> None:
    assert "left more than 1 ms late" in stats(lateness=[9000, 700, 300, 0]).verdict
    assert "7 packets were dropped" in stats(device_drops=[3, 4]).verdict
    assert "2 packets were refused by the kernel" in stats(write_errors=2).verdict
    assert stats(device_drops=[1, 0]).verdict.startswith("THE LAB COULD NOT KEEP UP")


def test_a_handful_of_late_packets_in_a_short_run_is_no_verdict() -> None:
    assert not stats(lateness=[2, 0, 2, 0]).problems


def test_the_difference_of_two_moments_counts_what_happened_between() -> None:
    later = stats(sent=150, lateness=[9100, 900, 100, 0], device_drops=[0, 5], cpu_seconds=0.75)
    between = later.since(stats())
    assert between.sent == 50
    assert between.lateness == [100, 0, 0, 0]
    assert between.device_drops == [0, 5]
    assert between.cpu_seconds == 0.25
    assert between.links[0].offered == 0
