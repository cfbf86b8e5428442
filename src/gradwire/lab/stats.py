"""Stats: the emulator's counters, per link and of its own, and whether the lab kept up."""

from __future__ import annotations

import msgspec

# A millisecond of lateness matters on a LAN and not on a WAN; one such packet in fifty makes a measurement invalid.
LATE_MICROSECONDS = 1000
LATE_SHARE = 0.02
LATE_FEWEST = 50  # fewer late packets than this are a short delay, not a lab that cannot keep up


class LinkStats(msgspec.Struct, frozen=True):
    """Packets and bytes on the wire of one direction of one link."""

    offered: int
    offered_bytes: int
    delivered: int
    delivered_bytes: int
    queue_drops: int
    loss_drops: int
    mtu_drops: int
    queue_peak: int
    reordered: int = 0  # delayed on purpose
    duplicated: int = 0  # copies made on purpose; they also count as delivered

    def since(self, before: LinkStats) -> LinkStats:
        names = [name for name in self.__struct_fields__ if name != "queue_peak"]
        return LinkStats(
            **{name: getattr(self, name) - getattr(before, name) for name in names}, queue_peak=self.queue_peak
        )


class EmulatorStats(msgspec.Struct, frozen=True):
    """Counters since the start, or between two times (`since`)."""

    received: int
    sent: int
    unroutable: int
    write_errors: int
    wakeups: int
    cpu_seconds: float
    realtime: bool
    lateness_bounds_us: list[int]
    lateness: list[int]
    lateness_max_us: float
    lateness_mean_us: float
    device_drops: list[int]
    links: list[LinkStats]
    nat_drops: int = 0  # packets to a host behind a NAT that no mapping admits, and what no NAT translates
    dilate: float = 1.0  # the lab's factor; the times here are the machine's, `problems` states undilated ones
    limits: str = ""  # what this lab does not emulate

    def since(self, before: EmulatorStats) -> EmulatorStats:
        return msgspec.structs.replace(
            self,
            received=self.received - before.received,
            sent=self.sent - before.sent,
            unroutable=self.unroutable - before.unroutable,
            write_errors=self.write_errors - before.write_errors,
            wakeups=self.wakeups - before.wakeups,
            nat_drops=self.nat_drops - before.nat_drops,
            cpu_seconds=self.cpu_seconds - before.cpu_seconds,
            lateness=[a - b for a, b in zip(self.lateness, before.lateness, strict=True)],
            device_drops=[a - b for a, b in zip(self.device_drops, before.device_drops, strict=True)],
            links=[a.since(b) for a, b in zip(self.links, before.links, strict=True)],
        )

    @property
    def late_share(self) -> float:
        """Share of packets that left the emulator more than an undilated millisecond late."""
        return self._late / max(1, sum(self.lateness))

    @property
    def _late(self) -> int:
        return sum(self.lateness[self.lateness_bounds_us.index(self._limit_us) + 1 :])

    @property
    def _limit_us(self) -> int:
        """The largest bound that is at most an undilated millisecond."""
        return max(bound for bound in self.lateness_bounds_us if bound <= LATE_MICROSECONDS * self.dilate)

    @property
    def queue_drops(self) -> int:
        return sum(link.queue_drops for link in self.links)

    @property
    def loss_drops(self) -> int:
        return sum(link.loss_drops for link in self.links)

    @property
    def problems(self) -> tuple[str, ...]:
        """Reasons why the lab itself, not the network, affected the results; empty if it kept up."""
        found = []
        if drops := sum(self.device_drops):
            found.append(f"{drops} packets were dropped because the emulator did not read them in time")
        if self.write_errors:
            found.append(f"{self.write_errors} packets were refused by the kernel")
        if self.late_share > LATE_SHARE and self._late >= LATE_FEWEST:
            found.append(
                f"{self.late_share:.1%} of the packets left more than {self._limit_us / 1000 / self.dilate:g} ms late "
                f"(worst {self.lateness_max_us / 1000 / self.dilate:.1f} ms)"
            )
        return tuple(found)

    @property
    def verdict(self) -> str:
        if not self.problems:
            return self.limits or "the lab kept up"
        return "THE LAB COULD NOT KEEP UP, its numbers are wrong: " + "; ".join(self.problems)
