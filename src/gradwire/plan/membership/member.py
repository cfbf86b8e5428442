"""Policy consistency: how all members change plans at the same step, without waiting and without mixing.

One `Member` per rank, without I/O: `handle` takes messages, `poll` gives them, `now` is an argument.

Changing plans (within an epoch, all members alive):
1. A proposer announces version v and resends until every member has acknowledged it.
2. It then commits: "vote for v in step a-1", a two steps ahead, and again later if that was missed.
3. Who knows the commit when step a-1 begins puts v on its data as a vote. The votes are merged with the sums, so all
   members end step a-1 with the same merged vote: v on all means v from step a on, anything else means no change.
   A lost message, a slow member or a dead proposer thus only ever cost time. Silence means unchanged.

Changing members (somebody lost, somebody joins): the lowest rank alive gathers an epoch (`plan.regroup`). Who answers
ends no more steps of the old epoch; unfinished ones are done again in the new; who missed a last result is handed it.
Versions and epochs are unique per proposer (equal modulo `stride`), so rivals never share a number.

Coming back: who is in no epoch that goes on (it was cut off, or taken for lost) says so to everybody it reaches until
an epoch takes it in. What it holds is then nobody's: it is handed everything (`Install.fresh`) before its next step.
Leaving: a goodbye costs nothing. Only when a step begins that would need the one who left is an epoch gathered.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import Enum

from gradwire.errors import IntegrityError, LinkError
from gradwire.plan.membership.messages import (
    NO_VOTE,
    Ack,
    Announce,
    Attempt,
    Commit,
    Install,
    Leave,
    Message,
    Ready,
    Regroup,
    Rejoin,
    Tag,
)
from gradwire.plan.membership.proposal import Proposal
from gradwire.plan.membership.regroup import RegroupVotes, Replan
from gradwire.types import Plan

# Control messages are repeated this often (seconds) until answered; they are small, and loss is the exception.
RESEND = 0.2
# A regroup takes round trips. Who is still in no epoch after this long (seconds) asks to be taken in, this often.
ASK = 1.0
# Who is in the epoch and has not reached another of its members for so long (seconds) is left out: the two cannot work
# together, and everybody waits for them. Longer than silence takes to be noticed on one side after the other.
STUCK = 3.0


class Verdict(Enum):
    """What to do with data: use it now, keep it for a step to come, or acknowledge and drop it."""

    CURRENT = "current"
    EARLY = "early"
    LATE = "late"


class Member:
    """One rank's view of epoch, members, plan and step."""

    def __init__(
        self, rank: int, members: Iterable[int], plan: Plan, replan: Replan, stride: int = 4096, votes: bool = False
    ) -> None:
        self.rank, self.stride = rank, stride
        self.members: tuple[int, ...] = tuple(sorted(members))
        self.fresh = rank not in self.members
        # Whether it counts among those who may go on although it is fresh: it knows that who had its place before
        # trains on nowhere.
        self._votes = votes
        self.epoch, self.version, self.done = 0, plan.version, -1
        self.plans: dict[int, Plan] = {plan.version: plan}
        self.alive = set(self.members) | {rank}
        self.behind: tuple[int, int] | None = None
        # Whom the transport has a connection to, and the goodbyes of those who left.
        self.reach = set() if self.fresh else self.alive - {rank}
        self.parted: dict[int, Leave] = {}
        # Whether members come back at all, whether this one could now, and since when there is a reason to ask.
        self.returning, self.willing = False, True
        self.adrift_since: float | None = None
        self._ask_at = 0.0
        # Members that hold no state until a step of this epoch is done.
        self._newcomers: set[int] = set()
        self._joined: tuple[int, ...] = ()
        self._attempts: tuple[Attempt, ...] = ()
        self._promised = 0
        self._replan = replan
        self._commits: dict[int, int] = {}
        self._tag: Tag | None = None
        self._proposal: Proposal | None = None
        self._gathering: RegroupVotes | None = None
        self._outbox: list[tuple[int, Message]] = []
        self._resend_at = 0.0
        self._highest = plan.version

    @property
    def step(self) -> int:
        """The step that is to be done now."""
        return self.done + 1

    @property
    def plan(self) -> Plan:
        return self.plans[self.version]

    @property
    def coordinator(self) -> int:
        return min(self.alive & set(self.members), default=self.rank)

    @property
    def proposing(self) -> bool:
        """Whether a proposal of ours is still on its way into force."""
        proposal = self._proposal
        return proposal is not None and proposal.epoch == self.epoch and proposal.version > self.version

    @property
    def leader(self) -> int:
        """Who gathers the next epoch: the lowest rank alive that holds state."""
        return min((self.alive & set(self.members)) - self._newcomers - self.parted.keys(), default=-1)

    @property
    def adrift(self) -> bool:
        """Whether this member waits for an epoch: somebody was lost, or others may go on without it."""
        return self._promised > self.epoch or not {self.rank} <= set(self.members) <= self.alive

    @property
    def asking(self) -> bool:
        """Adrift for so long that the epoch it knows will not go on."""
        return self.returning and self._ask_at > 0.0

    @property
    def stopped(self) -> bool:
        """Between epochs: no step may begin or end."""
        return self._promised > self.epoch or self.behind is not None or self.rank not in self.members

    # ---- the data plane asks -------------------------------------------------------------------------------------
    def begin_step(self) -> Tag | None:
        """The tag for this step's data, the same however often asked; None between epochs."""
        if self.stopped:
            return None
        if self._tag is None:
            ready = [version for version, activate in self._commits.items() if activate == self.step + 1]
            self._tag = Tag(self.epoch, self.version, self.step, max(ready, default=NO_VOTE))
        return self._tag

    def accept(self, tag: Tag) -> Verdict:
        """What to do with data tagged so; IntegrityError if the same step runs under two plans."""
        if tag.epoch != self.epoch:
            return Verdict.EARLY if tag.epoch > self.epoch else Verdict.LATE
        if tag.step != self.step:
            return Verdict.EARLY if tag.step > self.step else Verdict.LATE
        if self.stopped:
            return Verdict.EARLY
        if tag.version != self.version:
            raise IntegrityError(f"step {tag.step}: data of plan {tag.version} meets plan {self.version}")
        return Verdict.CURRENT

    def complete_step(self, tag: Tag, vote: int) -> bool:
        """Everybody's data is in, votes merged to `vote`. False if an epoch change came between: discard the result."""
        if self.stopped or self._tag is None or (tag.epoch, tag.step) != (self.epoch, self.step):
            return False
        self.done += 1
        self._tag = None
        self._newcomers.clear()
        if vote != NO_VOTE:
            self._activate(vote)
        self._commits = {v: at for v, at in self._commits.items() if at > self.step and v > self.version}
        return True

    def caught_up(self, step: int) -> None:
        """The result of `step` was handed over by its holder."""
        if self.behind is not None and self.behind[1] == step:
            self.done, self.behind, self.fresh = step, None, False
            self._newcomers.discard(self.rank)

    # ---- control -------------------------------------------------------------------------------------------------
    def propose(self, plan: Plan, now: float) -> int:
        """Announce a plan (its version is given here); a proposal still under way is given up for it."""
        # A number is used once: members may hold, and even have acknowledged, the plan that this one replaces.
        version = self._highest = self._next(self._highest)
        self._proposal = Proposal(self.epoch, version, self.members, plan)
        self.plans[version] = self._proposal.plan
        self._proposal.acked.add(self.rank)
        self._resend_at = now
        return version

    def lost(self, rank: int, now: float) -> None:
        """A member is gone, says the transport. The lowest rank left gathers the rest."""
        self.alive.discard(rank)
        self.reach.discard(rank)
        if rank in self.members or (self._gathering and rank in self._gathering.members):
            self._gather(now)

    def admit(self, rank: int, now: float) -> None:
        """A newcomer (or one who came back) asks to join."""
        self.alive.add(rank)
        self._gather(now)

    def reached(self, rank: int) -> None:
        """There is a connection to this rank again, says the transport."""
        self.reach.add(rank)

    def leave(self) -> Leave:
        """What to tell everybody before going for good."""
        return Leave(self.epoch, self.version, self.done)

    def overdue(self) -> list[int]:
        """Those who left and whom the step under way would need, or who hold what this member misses."""
        begun = self._tag.step if self._tag is not None else -1
        holder = self.behind[0] if self.behind else None
        present = self.alive & set(self.members)
        return [rank for rank, bye in self.parted.items() if rank in present and (begun > bye.step or rank == holder)]

    def handle(self, sender: int, message: Message, now: float) -> None:
        match message:
            case Announce():
                self._on_announce(sender, message)
            case Ack():
                self._on_ack(sender, message, now)
            case Commit():
                if message.epoch == self.epoch and message.version in self.plans and message.version > self.version:
                    self._commits[message.version] = message.activate
            case Regroup():
                self._on_regroup(sender, message)
            case Ready():
                if self._gathering:
                    self._gathering.add_answer(sender, message)
                    self._conclude(now)
            case Install():
                self._on_install(sender, message)
            case Rejoin():
                self._on_return(sender, message, now)
            case Leave():
                self.parted[sender] = message
                if self._gathering and sender in self._gathering.waiting:
                    self.lost(sender, now)

    def poll(self, now: float) -> list[tuple[int, Message]]:
        """Messages to send now, as (destination, message)."""
        self._outbox += self._asked(now)
        if now >= self._resend_at:
            self._resend_at = now + RESEND
            self._outbox += self._repeated()
        out, self._outbox = self._outbox, []
        # A leader answers its own install too; on a wire it would find that it cannot reach itself, and count as lost.
        return [(rank, message) for rank, message in out if rank != self.rank]

    # ---- inside --------------------------------------------------------------------------------------------------
    def _next(self, number: int) -> int:
        """The lowest number above that only this rank uses."""
        self._highest = max(self._highest, number)
        return number + 1 + (self.rank - number - 1) % self.stride

    def _activate(self, version: int) -> None:
        if version not in self.plans:
            raise IntegrityError(f"all voted for plan {version}, which member {self.rank} never had")
        previous, self.version = self.version, version
        # The plan before stays until its last step has closed everywhere, for whoever still needs data under it.
        self.plans = {v: plan for v, plan in self.plans.items() if v >= version or v == previous}

    def _repeated(self) -> list[tuple[int, Message]]:
        out: list[tuple[int, Message]] = []
        if self._proposal and self._proposal.epoch == self.epoch and not self.stopped:
            if self.version >= self._proposal.version:
                self._proposal = None
            else:
                out += self._proposal.messages(self.step)
                if self._proposal.activate is not None:
                    self._commits[self._proposal.version] = self._proposal.activate
        gathering = self._gathering
        if gathering and gathering.install is None:
            call = Regroup(gathering.epoch, self.version, self.done, gathering.members)
            out += [(rank, call) for rank in sorted(gathering.waiting)]
        elif gathering and gathering.install:
            out += [(rank, gathering.install) for rank in sorted(gathering.unacknowledged)]
        if self.returning and self.rank == self.leader and not self.adrift:
            # Whoever is in reach and not in this epoch may believe in an older one: it hears that it was left out.
            out += [(rank, self._notice()) for rank in sorted(self.reach - set(self.members) - self.parted.keys())]
        return out

    def _notice(self) -> Regroup:
        return Regroup(self.epoch, self.version, self.done, self.members)

    def _asked(self, now: float) -> list[tuple[int, Message]]:
        """To everybody in reach, when it is time: which of them may take this member in, only they know."""
        if not self.adrift:
            self.adrift_since, self._ask_at = None, 0.0
        elif self.adrift_since is None:
            self.adrift_since = now
        elif self.returning and self.willing and now - self.adrift_since >= ASK and now >= self._ask_at:
            self._ask_at = now + ASK
            return [(rank, self._plea(now - self.adrift_since)) for rank in sorted(self.reach)]
        return []

    def _plea(self, waited: float = 0.0) -> Rejoin:
        reach = tuple(sorted(self.reach))
        return Rejoin(self._promised, self.version, self.done, self.epoch, reach, waited, self.fresh)

    def _on_return(self, sender: int, message: Rejoin, now: float) -> None:
        """The leader's answer is an epoch; nobody else's matters."""
        if not self.returning:
            return
        self._highest = max(self._highest, message.epoch)
        if message.installed == self.epoch and not message.fresh:
            self._newcomers.discard(sender)
        if sender in self.parted or self.rank != self.leader:
            if sender in self.members:
                # Promised beyond this epoch, it will not follow here: this member is as much adrift as it is.
                self._promised = max(self._promised, message.epoch)
            if sender == self.leader and message.installed == self.epoch:
                self._outbox.append((sender, self._plea()))  # it is to lead, and may take this member for lost
            return
        gathering = self._gathering
        called = gathering is not None and gathering.install is None and sender in gathering.members
        present = self.alive & set(self.members)
        unreached = present - {sender, self.rank} - set(message.reach)
        if called or (sender in present and message.installed < self.epoch):
            if message.epoch > self._promised:
                self._gather(now)  # it is promised to a rival whose call came to nothing, and cannot follow ours
        elif sender not in present or message.installed > self.epoch:
            if not unreached:
                self.admit(sender, now)
        elif not unreached:
            self._gather(now)  # it lost somebody who is back, or never was gone
        elif message.adrift >= STUCK:
            self.alive.discard(sender)
            self._gather(now)

    def _outdated(self, sender: int, epoch: int) -> bool:
        """A call or an epoch that this member has gone beyond; one that others went on without is told so."""
        if epoch < self.epoch and sender not in self.members and self.returning:
            self._outbox.append((sender, self._notice()))
        return epoch < self._promised or epoch <= self.epoch

    def _on_announce(self, sender: int, message: Announce) -> None:
        if message.epoch != self.epoch or message.version <= self.version:
            return
        self._highest = max(self._highest, message.version)
        self.plans[message.version] = message.plan
        self._outbox.append((sender, Ack(self.epoch, message.version, self.step)))

    def _on_ack(self, sender: int, message: Ack, now: float) -> None:
        proposal = self._proposal
        if proposal and (message.epoch, message.version) == (proposal.epoch, proposal.version):
            proposal.acked.add(sender)
            if proposal.complete and proposal.activate is None:
                self._resend_at = now
        if self._gathering and self._gathering.install and message.epoch == self._gathering.epoch:
            self._gathering.unacknowledged.discard(sender)

    def _gather(self, now: float) -> None:
        """Lead a new epoch, if that falls to this member."""
        if self.fresh or self.rank != self.leader:
            return
        present = tuple(sorted(self.alive - self.parted.keys()))
        self._gathering = RegroupVotes(self._next(max(self._promised, self._highest)), present)
        self._highest = self._promised = self._gathering.epoch
        self._gathering.add_answer(self.rank, self._ready(self._gathering.epoch))
        self._resend_at = now
        self._conclude(now)

    def _ready(self, epoch: int) -> Ready:
        members = (*self.members, self.rank) if self.fresh and self._votes else self.members
        return Ready(epoch, self.version, self.done, self.epoch, members, self.fresh, self._attempts, self._joined)

    def _on_regroup(self, sender: int, message: Regroup) -> None:
        if self._outdated(sender, message.epoch):
            return
        self._promised = message.epoch
        self._highest = max(self._highest, message.epoch)
        if self._gathering and self._gathering.epoch < message.epoch:
            self._gathering = None
        if self.rank in message.members:
            self._outbox.append((sender, self._ready(message.epoch)))
            if not any(known.epoch == message.epoch for known in self._attempts):
                self._attempts += (Attempt(message.epoch, sender, message.members),)

    def _new_plan(self, members: tuple[int, ...], version: int) -> Plan:
        """For a new epoch; the level in force stays."""
        return replace(self._replan(members, version), level=self.plan.level)

    def _conclude(self, now: float) -> None:
        gathering = self._gathering
        if gathering is None or gathering.epoch != self._promised or gathering.install:
            return
        install = gathering.conclude(self._new_plan, gathering.epoch, self.parted)
        if install:
            self._on_install(self.rank, install)
            gathering.unacknowledged.discard(self.rank)
            self._resend_at = now

    def _on_install(self, sender: int, message: Install) -> None:
        if message.epoch == self.epoch:
            self._outbox.append((sender, Ack(self.epoch, self.version, self.step)))
        if self._outdated(sender, message.epoch):
            return
        self._promised = self.epoch = message.epoch
        self._highest = max(self._highest, message.version)
        # Whoever the leader still counts in counts; the transport reports a lost member again while it is waited for.
        self.members, self.alive = message.members, set(message.members)
        self.version, self.plans = message.version, {message.version: message.plan}
        self._commits, self._tag, self._proposal, self._attempts = {}, None, None, ()
        self._newcomers, self._joined, self.fresh = set(message.fresh), message.fresh, self.rank in message.fresh
        self.behind = (message.holder, message.step - 1) if self.fresh or self.done < message.step - 1 else None
        self._outbox.append((sender, Ack(self.epoch, self.version, self.step)))

    def require_quorum(self) -> None:
        """LinkError for a member that was left out or is in the smaller part of a cut network."""
        gathering = self._gathering
        if gathering and not gathering.waiting and gathering.install is None:
            raise LinkError(
                f"members {gathering.members} are not enough of {self.members} to go on; "
                "wait for the others, or restart from the last checkpoint"
            )
