"""Dilation: the stretched time of a lab, and conversions between it and the machine's time.

A lab with a factor of 4 runs a second of its network in four seconds of this machine, so that eight ranks on two cores
each have the time of a core of their own. `gradwire.network.dilate` stretches the network, a preloaded library
(native/emulator/dilate.cpp) stretches the clocks and waits of the ranks, and settings of the hosts stretch TCP's timers
as far as the kernel allows it. Ranks measure undilated seconds without a change. Only what runs outside of the lab's
hosts, such as a benchmark that times `Lab.run` itself, has to convert.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gradwire.errors import ConfigError
from gradwire.lab.program import installed_program
from gradwire.network.dilate import checked_factor

LIBRARY: Final = "libgradwire-dilate.so"
FACTOR_VARIABLE: Final = "GRADWIRE_DILATE"
ORIGIN_VARIABLE: Final = "GRADWIRE_DILATE_ORIGIN"
SETTINGS: Final = Path("/proc/sys/net/ipv4")
# TCP's times that a network namespace can set, with the kernel's defaults: the least retransmission timeout (since
# Linux 6.11), how long acknowledgements of reordered packets are collected, and how long the least round trip is
# remembered. Without the first, TCP would restart slowly after pauses of a fraction of the undilated 200 ms.
TCP_TIMES: Final[Mapping[str, int]] = {
    "tcp_rto_min_us": 200_000,
    "tcp_comp_sack_delay_ns": 1_000_000,
    "tcp_comp_sack_slack_ns": 100_000,
    "tcp_min_rtt_wlen": 300,
}


@dataclass(frozen=True, slots=True)
class Dilation:
    """A factor, and the moment of the machine's monotonic clock at which dilated and real time are equal."""

    factor: float = 1.0
    origin: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        checked_factor(self.factor)

    def seconds(self, real: float) -> float:
        """Undilated seconds for a duration measured outside of the lab's hosts."""
        return real / self.factor

    def real(self, seconds: float) -> float:
        """Seconds of this machine for an undilated duration."""
        return seconds * self.factor

    def clock(self, monotonic: float) -> float:
        """What the hosts' monotonic clock shows at a time of this machine's."""
        return self.origin + self.seconds(monotonic - self.origin)

    def environment(self) -> dict[str, str]:
        """Variables for the processes of a host, without LD_PRELOAD (`library`); none in real time."""
        if self.factor == 1:
            return {}
        return {FACTOR_VARIABLE: f"{self.factor:g}", ORIGIN_VARIABLE: str(round(self.origin * 1e9))}

    def library(self) -> str:
        """The library to preload; empty in real time."""
        if self.factor == 1:
            return ""
        path = installed_program().with_name(LIBRARY)
        if not path.is_file():
            raise ConfigError(f"dilate: {LIBRARY} was not found in {path.parent}; run 'pip install .' again")
        return str(path)

    def tcp_settings(self, folder: Path = SETTINGS) -> dict[str, int]:
        """The stretched TCP_TIMES that this kernel has."""
        if self.factor == 1:
            return {}
        return {name: round(value * self.factor) for name, value in TCP_TIMES.items() if (folder / name).exists()}


def current(environment: Mapping[str, str] | None = None) -> float:
    """The factor of the lab in which this process runs; 1 outside of one, and in real time.

    Its clocks are converted already. This is for reports that state the factor, and for programs that cannot be
    preloaded.
    """
    text = (os.environ if environment is None else environment).get(FACTOR_VARIABLE)
    if text is None:
        return 1.0
    try:
        factor = float(text)
    except ValueError:
        raise ConfigError(f"{FACTOR_VARIABLE}: {text!r} is not a number; unset it: only gradwire lab sets it") from None
    return checked_factor(factor, FACTOR_VARIABLE)
