"""Story: what the demo shows: a network that becomes slow half-way, and the three ways to train that are compared.

With a link of 500 Mbit/s nobody needs to compress. At half of the steps the link drops to 40 Mbit/s, as a line that
fails over does, and whoever sends the whole gradient waits. The change comes at a step and not at a time, so that it
comes at the same place of every run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gradwire.network import Change, Host, LinkSpec, Network
from gradwire.network.network import SWITCH, as_hosts, host_names, star
from gradwire.units import Bytes, Rate, Seconds

FAST: Final = Rate.from_mbit(500)
SLOW: Final = Rate.from_mbit(40)
# One way, on each of the two links between two hosts.
DELAY: Final = Seconds(0.0005)
# Of each link, whatever its rate: 50 ms of the slow one.
QUEUE: Final = Bytes(256 * 1024)


@dataclass(frozen=True, slots=True)
class Contestant:
    """One run of the demo; `arguments` are those of the training script."""

    name: str
    arguments: tuple[str, ...]

    @property
    def folder(self) -> str:
        return self.name.replace(" ", "-")


def contestants(level: str) -> tuple[Contestant, ...]:
    """Plain DDP, torch's PowerSGD hook, and gradwire at this level."""
    return (
        Contestant("plain DDP", ()),
        Contestant("PowerSGD", ("--powersgd", "1")),
        Contestant("gradwire", ("--level", level)),
    )


def failing_line(hosts: int, rate: Rate = FAST) -> Network:
    """A switch with one link of this rate to each host."""
    named: tuple[Host, ...] = as_hosts(host_names(hosts))
    about = f"{FAST} to each host, 2 ms round trip; half-way the links drop to {SLOW}"
    return Network("failing-line", named, star(named, LinkSpec(rate, DELAY, queue=QUEUE)), (SWITCH,), about=about)


def change_to(rate: Rate) -> Change:
    """Every link gets this rate."""
    return Change(Seconds(0.0), "*", rate=rate)


@dataclass(slots=True)
class Halves:
    """The training seconds of one run before and after half of its steps, from the reports of its rank 0."""

    total: int = 0
    step: int = 0
    before: float = 0.0
    after: float = 0.0
    loss: float | None = None
    accuracy: float | None = None

    def take(self, step: int, total: int, seconds: float, loss: float) -> bool:
        """Add a report; True at the first one of the second half."""
        turned = self.step < total // 2 <= step
        self.step, self.total, self.loss = step, total, loss
        if step < total // 2 or turned:
            self.before = seconds
        else:
            self.after = seconds - self.before
        return turned

    @property
    def seconds(self) -> float:
        return self.before + self.after


def bars(runs: dict[str, Halves], width: int) -> list[tuple[str, str, str]]:
    """The picture: for each run its name and two bars, before and after the change, on one scale of time."""
    longest = max((run.seconds for run in runs.values()), default=0.0)
    scale = width / longest if longest > 0 else 0.0
    return [(name, "█" * round(run.before * scale), "▒" * round(run.after * scale)) for name, run in runs.items()]
