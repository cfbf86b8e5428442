"""A job in virtual time for the membership tests: a bad network, deaths, joins, disconnections and rivals, by seed.

The data plane is a minimal collective: the tag of each member for a step reaches all others, sooner or later; a member
ends the step when it has all of them. Control messages get lost, late, doubled and reordered.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from functools import reduce
from itertools import count

from gradwire.plan.membership.member import Member
from gradwire.plan.membership.messages import Message, Tag, merged
from gradwire.types import Plan, Tree

Record = tuple[int, int, tuple[int, ...]]


def star_plan(members: tuple[int, ...], version: int) -> Plan:
    return Plan(version, "star", (Tree(members[0], dict.fromkeys(members, members[0]), 1.0),), 1.0, "test")


@dataclass
class Trouble:
    """What a seed brings."""

    members: int = 4
    steps: int = 10
    loss: float = 0.2
    double: float = 0.1
    delay: float = 0.5
    deaths: int = 1
    suspicions: int = 0
    joins: int = 0
    # Members that are disconnected for a while; those that leave in order; whether excluded members rejoin.
    cuts: int = 0
    leaves: int = 0
    rejoin: bool = False
    proposals: int = 4
    # Whether dead members are restarted, without state.
    restart: bool = False
    # New members that connect and ask, as a process does that joins a running job; `joins` are admitted unasked.
    grows: int = 0


@dataclass
class JobWorld:
    seed: int
    trouble: Trouble
    now: float = 1_000.0
    late: int = 0
    logs: dict[int, dict[int, Record]] = field(default_factory=dict)
    members: dict[int, Member] = field(default_factory=dict)
    dead: set[int] = field(default_factory=set)
    suspected: set[int] = field(default_factory=set)
    left: set[int] = field(default_factory=set)
    cut: set[int] = field(default_factory=set)
    was_cut: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.order = count()
        self.queue: list[tuple[float, int, str, tuple]] = []
        ranks = tuple(range(self.trouble.members))
        for rank in ranks:
            self.add(rank, ranks)
        horizon = self.trouble.steps * self.trouble.delay * 2
        for _ in range(self.trouble.proposals):
            self.later(self.draw.uniform(0, horizon), "propose", ())
        for _ in range(self.trouble.deaths):
            self.later(self.draw.uniform(0, horizon), "die", ())
        for _ in range(self.trouble.suspicions):
            self.later(self.draw.uniform(0, horizon), "suspect", ())
        for _ in range(self.trouble.cuts):
            self.later(self.draw.uniform(0, horizon), "cut", ())
        for _ in range(self.trouble.leaves):
            self.later(self.draw.uniform(0, horizon), "leave", ())
        for place in range(self.trouble.joins):
            self.later(self.draw.uniform(0, horizon), "join", (self.trouble.members + place,))
        for place in range(self.trouble.grows):
            self.later(self.draw.uniform(0, horizon), "grow", (self.trouble.members + place,))

    def add(self, rank: int, members: tuple[int, ...]) -> None:
        self.members[rank] = Member(rank, members, star_plan(members, 1), star_plan, stride=64)
        self.members[rank].membership.rejoin.enabled = self.trouble.rejoin
        self.logs[rank] = {}
        self.tags: dict[int, dict[tuple[int, int], dict[int, Tag]]] = getattr(self, "tags", {})
        self.tags[rank] = {}
        self.sent: dict[int, list[tuple[Tag, tuple[int, ...]]]] = getattr(self, "sent", {})
        self.sent[rank] = []
        self.later(0.0, "wake", (rank,))

    def later(self, delay: float, what: str, argument: tuple) -> None:
        heapq.heappush(self.queue, (self.now + delay, next(self.order), what, argument))

    def group(self) -> list[Member]:
        """The living members of the newest epoch any of them installed."""
        living = [
            member for rank, member in self.members.items() if rank not in self.absent and not member.membership.fresh
        ]
        newest = max(living, key=lambda member: member.epoch)
        return [member for member in living if member.rank in newest.members]

    @property
    def absent(self) -> set[int]:
        return self.dead | self.left

    def apart(self, first: int, second: int) -> bool:
        """Whether two members cannot reach each other: a disconnected member is alone."""
        return first in self.cut or second in self.cut

    def settled(self) -> bool:
        """All members of the group have done all steps, and no member still asks to rejoin."""
        group = self.group()
        if any(member.done + 1 < self.trouble.steps for member in group):
            return False
        inside = {member.rank for member in group if not member.membership.stopped and member.epoch == group[0].epoch}
        return not self.trouble.rejoin or not (self.cut | self.members.keys() - inside - self.absent)

    def run(self, deadline: float = 400.0) -> None:
        """Until every living member of the group has done all steps; the test fails at the deadline."""
        end = self.now + deadline
        while self.queue:
            self.now, _, what, argument = heapq.heappop(self.queue)
            assert self.now < end, f"seed {self.seed}: no progress: {[(m.rank, m.epoch, m.done) for m in self.group()]}"
            getattr(self, f"on_{what}")(*argument)
            if what == "wake" and self.settled():
                return

    # ---- events --------------------------------------------------------------------------------------------------
    def on_wake(self, rank: int) -> None:
        if rank in self.dead:
            return
        if rank not in self.left:  # a member that left still sends what others need for its last step
            self.advance(rank)
        self.later(0.1 + self.draw.random() * 0.2, "wake", (rank,))
        for tag, members in self.sent[rank][-2:]:
            for other in members:
                self.send_data(rank, other, tag)

    def on_control(self, source: int, destination: int, message: Message) -> None:
        if destination not in self.absent and not self.apart(source, destination):
            self.members[destination].handle(source, message, self.now)
            self.advance(destination)

    def on_data(self, source: int, destination: int, tag: Tag) -> None:
        if destination in self.absent or self.apart(source, destination):
            return
        member = self.members[destination]
        if (tag.epoch, tag.step) < (member.epoch, member.step):
            self.late += 1
            return
        if (tag.epoch, tag.step) == (member.epoch, member.step) and not member.membership.stopped:
            assert tag.version == member.version, f"seed {self.seed}: data of plan {tag.version} meets {member.version}"
        self.tags[destination].setdefault((tag.epoch, tag.step), {})[source] = tag
        self.advance(destination)

    def on_propose(self) -> None:
        group = self.group()
        # Usually the coordinator; sometimes a rival who believes to be it.
        member = group[0] if self.draw.random() < 0.6 else self.draw.choice(group)
        if not member.proposing:  # as the plan manager does: an unfinished proposal is not replaced
            member.propose(star_plan(member.members, 1), self.now)
        self.advance(member.rank)

    def on_die(self) -> None:
        victim = self.pick()
        if victim is None:
            self.later(1.0, "die", ())
            return
        self.dead.add(victim)
        self.notice(victim)
        if self.trouble.restart:
            self.later(self.draw.uniform(4.0, 8.0), "restart", (victim,))

    def on_restart(self, rank: int) -> None:
        """Another process replaces a dead one; its connections are made one by one."""
        self.dead.discard(rank)
        self.connect(rank, tuple(other for other in range(self.trouble.members) if other != rank))

    def on_grow(self, rank: int) -> None:
        """A process joins as a member that was not there at the start."""
        self.connect(rank, self.group()[0].members)

    def connect(self, rank: int, others: tuple[int, ...]) -> None:
        self.was_cut.add(rank)
        self.add(rank, others)
        self.on_heal(rank)

    def pick(self) -> int | None:
        """The next victim: often the coordinator. None while an earlier loss is unsettled or a quorum would be lost."""
        group = self.group()
        ranks = sorted(member.rank for member in group)
        gone = self.absent | (self.suspected | self.was_cut if not self.trouble.rejoin else self.cut)
        if self.trouble.rejoin and (self.was_cut | self.suspected) - self.absent - set(ranks):
            return None
        if any(2 * (len(ranks) - 1) <= len(member.members) or set(member.members) & gone for member in group):
            return None
        return ranks[0] if self.draw.random() < 0.5 else self.draw.choice(ranks)

    def on_suspect(self) -> None:
        """A live member is taken for dead by all others, at different times, while its messages still come through."""
        victim = self.pick()
        if victim is None:
            self.later(1.0, "suspect", ())
            return
        self.suspected.add(victim)
        self.notice(victim)
        if self.trouble.rejoin:  # the others close their connections to it
            self.alarm(victim)

    def on_cut(self) -> None:
        """One member is disconnected for a while; both sides notice, each at its own time."""
        victim = self.pick()
        if victim is None:
            self.later(1.0, "cut", ())
            return
        self.cut.add(victim)
        self.was_cut.add(victim)
        self.notice(victim)
        self.alarm(victim)
        self.later(self.draw.uniform(4.0, 12.0), "heal", (victim,))

    def on_heal(self, victim: int) -> None:
        self.cut.discard(victim)
        for other in self.members:
            if other != victim and other not in self.absent:
                for pair in ((victim, other), (other, victim)):
                    self.later(self.draw.uniform(0.1, 2.0), "reached", pair)

    def on_reached(self, rank: int, other: int) -> None:
        if not self.apart(rank, other) and not {rank, other} & self.absent:
            self.members[rank].membership.reconnected(other)

    def on_leave(self) -> None:
        """A member leaves between two steps; its Leave reaches all that it is connected to."""
        leaver = self.pick()
        if leaver is None or self.members[leaver].membership.stopped:
            self.later(1.0, "leave", ())
            return
        self.left.add(leaver)
        for other in self.members:
            if other not in self.absent:
                self.later(self.draw.uniform(0.0, 1.0), "left", (leaver, other, self.members[leaver].leave()))

    def on_left(self, leaver: int, rank: int, message: Message) -> None:
        """Reliable, unlike other messages: the connection is closed after it."""
        if rank not in self.absent:
            self.members[rank].handle(leaver, message, self.now)
            self.advance(rank)

    def notice(self, victim: int) -> None:
        for rank in self.members:
            if rank not in self.absent and rank != victim:
                self.later(self.draw.uniform(0.1, 3.0), "lost", (rank, victim))

    def alarm(self, victim: int) -> None:
        """It loses all others, too."""
        for other in self.members:
            if other != victim and other not in self.absent:
                self.later(self.draw.uniform(0.1, 3.0), "lost", (victim, other))

    def on_lost(self, rank: int, victim: int, again: bool = False) -> None:
        if rank in self.absent or (rank in self.suspected and not self.trouble.rejoin):
            return
        there = victim not in self.absent and not self.apart(rank, victim) and self.trouble.rejoin
        if again and there:
            return
        if victim in self.members[rank].membership.alive:
            self.members[rank].lost(victim, self.now)
        if there:  # a false alarm: the connection is restored
            self.later(self.draw.uniform(0.1, 2.0), "reached", (rank, victim))
        self.advance(rank)
        # The transport keeps reporting a member that is expected to send and does not.
        self.later(4.0, "lost", (rank, victim, True))

    def on_join(self, rank: int) -> None:
        group = self.group()
        self.add(rank, group[0].members)
        for member in group:
            self.later(self.draw.uniform(0.1, 1.0), "admit", (member.rank, rank))

    def on_admit(self, rank: int, newcomer: int) -> None:
        if rank in self.absent or newcomer not in self.members or newcomer in self.members[rank].members:
            return
        self.members[rank].admit(newcomer, self.now)
        self.advance(rank)
        self.later(4.0, "admit", (rank, newcomer))

    def on_caught_up(self, rank: int, holder: int, step: int) -> None:
        member = self.members[rank]
        if rank in self.absent or member.membership.missing != (holder, step):
            return
        if holder in self.absent or self.apart(rank, holder) or step not in self.logs[holder]:
            return
        self.logs[rank] = {s: record for s, record in self.logs[holder].items() if s <= step}
        member.caught_up(step)
        self.advance(rank)

    # ---- the data plane ------------------------------------------------------------------------------------------
    def advance(self, rank: int) -> None:
        member = self.members[rank]
        for leaver in member.blocking():
            member.lost(leaver, self.now)
        for destination, message in member.poll(self.now):
            self.send_control(rank, destination, message)
        if member.membership.missing is not None:
            self.later(self.draw.uniform(0.05, 1.0), "caught_up", (rank, *member.membership.missing))
        tag = member.begin_step()
        if tag is None or member.step >= self.trouble.steps + 3:
            return
        if not self.sent[rank] or self.sent[rank][-1][0] != tag:
            self.sent[rank].append((tag, member.members))
            for other in member.members:
                self.send_data(rank, other, tag)
        got = self.tags[rank].get((tag.epoch, tag.step), {}) | {rank: tag}
        if set(got) == set(member.members):
            assert {other.version for other in got.values()} == {tag.version}, f"seed {self.seed}: a step mixes plans"
            if member.complete_step(tag, reduce(merged, (other.vote for other in got.values()))):
                self.logs[rank][tag.step] = (tag.epoch, tag.version, member.members)
                self.advance(rank)

    def send_control(self, source: int, destination: int, message: Message) -> None:
        for _ in range(1 + (self.draw.random() < self.trouble.double)):
            if self.draw.random() >= self.trouble.loss:
                self.later(self.draw.expovariate(1 / self.trouble.delay), "control", (source, destination, message))

    def send_data(self, source: int, destination: int, tag: Tag) -> None:
        if destination != source and self.draw.random() >= self.trouble.loss:
            self.later(self.draw.expovariate(1 / self.trouble.delay), "data", (source, destination, tag))
