"""Slow start: how much longer a transfer takes because TCP begins with a small window. Pure.

A sender with window w has w bytes acknowledged per round trip, and doubles w each time, until the path is full (w =
rate x round trip) or everything is sent. Each such round trip takes rtt - w / rate longer than on a full path.
TCP begins like this after connecting and, with net.ipv4.tcp_slow_start_after_idle, after every pause longer than its
retransmission timeout: a training step's compute is often such a pause.
"""

from __future__ import annotations

from typing import Final

# Linux (RFC 6928): ten segments of an Ethernet path.
INITIAL_WINDOW: Final = 10 * 1448.0
# Linux's least retransmission timeout, to which a round trip is added.
LEAST_TIMEOUT: Final = 0.2


def slow_start_seconds(nbytes: float, rtt: float, rate: float, window: float = INITIAL_WINDOW) -> float:
    """Seconds that `nbytes` take longer than over a full path of `rate` bytes per second, from a window of `window`."""
    extra, sent = 0.0, 0.0
    window = max(window, 1.0)
    # The last window's bytes are waited for once, as on a full path: that is latency, not slow start.
    while sent + window < nbytes and window < rate * rtt:
        extra += rtt - window / rate
        sent += window
        window *= 2
    return extra


def longest_slow_start(nbytes: float, rtt: float, window: float = INITIAL_WINDOW) -> float:
    """The most that slow start can add, whatever the rate: all but the last round trip of `nbytes`."""
    return slow_start_seconds(nbytes, rtt, float("inf"), window)


def window_after_idle(window: float, idle: float, timeout: float, initial: float = INITIAL_WINDOW) -> float:
    """The window after a pause: halved once per retransmission timeout, down to the initial one."""
    if timeout <= 0 or idle <= timeout:
        return window
    halvings = min(60, int(idle // timeout))
    return max(min(window, initial), window / float(1 << halvings))


def rate_with_slow_start(nbytes: float, seconds: float, rtt: float, window: float = INITIAL_WINDOW) -> float:
    """The rate at which `nbytes` take `seconds` (without latency) from a small window; infinite where slow start alone
    takes as long."""
    if seconds <= longest_slow_start(nbytes, rtt, window):
        return float("inf")
    low, high = nbytes / seconds, 1e13
    # A higher rate never takes longer, so halving the logarithm finds it; 2 ** -12 of the range is a fraction of 1 %.
    for _ in range(12):
        middle = (low * high) ** 0.5
        if nbytes / middle + slow_start_seconds(nbytes, rtt, middle, window) > seconds:
            low = middle
        else:
            high = middle
    return high
