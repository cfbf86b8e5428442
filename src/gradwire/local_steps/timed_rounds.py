"""Timed rounds: rounds of so many seconds, in which every rank makes as many steps as it can (`sync_seconds`).

After every step of the inner optimizer:

    1. if the round's seconds have not passed on this rank's clock: go on
    2. announce that this rank's part is over, and stand still until all ranks have announced that, but not longer than
       the share `sync_wait` of a round. Who does not wait any longer makes another step, and looks again after it
    3. all ranks send how many steps (or samples) they made, and each scales its pseudo-gradient by

           world size x own steps / steps of all ranks

       so that the mean over ranks, which the session computes, is the mean over steps. What compression leaves out
       stays in the residual as it was weighted
    4. the exchange and the outer step, as in rounds of a fixed number of steps; the next round begins

A rank that is in a step which takes longer than the round and the wait of 2 is late, and no rank waits for it: a thread
beside its training thread (local_steps/late_rank.py) announces and takes part for it (`pass_round`), with the weights
and the steps that it had before that step, or with weight 0 where they were not held, because the step before it was
not so long. Its steps since then stay in its local weights, and are sent in a later round. With a delay there is no
such thread: what is in flight is applied between steps only. The further steps of 2 are for a process that does not
answer at all.

With fragments each has its own seconds / fragments, one after another, and the weights are those of the steps since it
was last sent. Clocks are never compared: a round begins on every rank with the end of the last exchange.

A rank that has no more steps to make is finishing (`finish`): it takes part in the others' rounds with weight 0 until
all ranks are finishing, and the last exchange has everything that is left.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from gradwire.local_steps.outer_exchange import OuterParts
from gradwire.local_steps.outer_report import OuterFacts
from gradwire.local_steps.round_agreement import RankProgress, RoundAgreement, shares
from gradwire.local_steps.rounds import Rounds

# Seconds that a rank stands still at least: the one that announces last has the others' announcements already, and
# needs only the time in which a thread of a busy machine reads them.
LEAST_WAIT: Final = 0.1
# Seconds for which `pass_round` waits for the other ranks before the training thread's step may have ended.
LOOK: Final = 0.05
LATE: Final = "a step of this rank takes longer than the round"


@dataclass(frozen=True, slots=True)
class RoundTiming:
    """Seconds of a round, and the share of it for which a rank stands still for slower ones at its end."""

    seconds: float
    wait: float

    def longest_wait(self, seconds: float) -> float:
        """At the end of a round, or of a fragment's part of it, of these seconds."""
        return max(LEAST_WAIT, self.wait * seconds)


class TimedRounds(Rounds):
    """`made` counts for each fragment the steps since it was last sent that the optimizer made and no loss scaler
    skipped, `samples` the samples in them. `global_steps` are the steps of all ranks in the global weights."""

    def __init__(self, parts: OuterParts, timing: RoundTiming, agreement: RoundAgreement, delay: int = 0) -> None:
        super().__init__(parts, 0, delay)
        self.timing, self.agreement, self.clock = timing, agreement, parts.reporter.clock
        self.made, self.samples = [0] * len(self.unsent), [0] * len(self.unsent)
        self.fragment = self.global_steps = 0
        self._counted = 0
        self._waited_for_ranks = 0.0
        self._began = self._step_began = self.clock.now()
        self._part = timing.seconds / len(self.unsent)
        # Held by the training thread while it is here, and by the thread of a late rank.
        self._lock = threading.RLock()
        # Whether the training thread has come to the end of this round; whether no rounds are due: after `meet`.
        self._here, self._resting = False, False
        # Local weights by bucket, from before the step that is being computed, if that is expected to be late.
        self._held: dict[int, Tensor] = {}
        self._error: BaseException | None = None

    @property
    def length(self) -> str:
        return f"{self.timing.seconds:g} s"

    def count_samples(self, count: int) -> None:
        """The step that follows is made with these samples, and with those of earlier calls since the last step."""
        self._counted += count

    def count_step(self, made: bool = True) -> None:
        with self._lock:
            self._raise_error()
            self._begin_step()
            self._catch_up()
            counted, self._counted = self._counted, 0
            if made:
                self.made = [one + 1 for one in self.made]
                self.samples = [one + counted for one in self.samples]
            took, self._resting = self.clock.now() - self._step_began, False
            self._end_part()
            self._step_began = self.clock.now()
            if self._step_began + took >= self._late_at:
                self._hold()

    def _end_part(self) -> None:
        """After a step: end the round, or the fragment's part of it, if its seconds have passed."""
        if self.clock.now() - self._began < self._part:
            return  # 1
        patience, self._here = 0.0 if self._here else self.timing.longest_wait(self._part), True
        if not self.agreement.announced:
            self.agreement.announce()
        if self._all_here(patience):  # 2
            self._meet(f"{self._part:g} s of local steps have passed")

    def finish(self, reason: str) -> None:
        """Synchronise all of the weights. Every rank calls this, and each when it has made its last step: until all
        have, this rank takes part in their rounds."""
        with self._lock:
            self._raise_error()
            self._catch_up()
            while True:
                if not self.agreement.announced:
                    self.agreement.announce()
                self._all_here(None)
                if self._meet(reason, finishing=True):
                    break

    def meet(self, reason: str) -> None:
        with self._lock:
            self.finish(reason)
            self._resting = True

    def resume(self) -> None:
        """After `meet`: take part in rounds again, also before this rank's next step."""
        self._resting = False

    @property
    def _late_at(self) -> float:
        return self._began + self._part + self.timing.longest_wait(self._part)

    def seconds_until_late(self) -> float:
        return self._part if self._resting else self._late_at - self.clock.now()

    def _late(self) -> bool:
        """Also of a rank that announced, gave up waiting and makes another step: while it waits, it has the lock."""
        return not (self._resting or self.delay) and self.clock.now() >= self._late_at

    def _raise_error(self) -> None:
        if self._error is not None:
            with self.session.reporting():
                raise self._error

    def pass_round(self) -> None:
        """Take part in the round for the training thread, whose step is late. Called by another thread."""
        with self._lock:
            if not self._late():
                return
            if not self.agreement.announced:
                self.agreement.announce()
        if not self.agreement.all_here(LOOK):
            return  # the step may have ended meanwhile
        with self._lock:
            if self._late() and self.agreement.announced:
                self._meet(LATE, held=self._held)
                self._wait_for_device()

    def fail(self, error: BaseException) -> None:
        self._error = error

    def retire(self) -> None:
        """No more rounds: `pass_round` has nothing to do from now on. Does not wait for it."""
        self._resting = True

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No other thread changes anything inside, and the local weights are up to date."""
        with self._lock:
            self._catch_up()
            yield

    @contextmanager
    def global_weights(self) -> Iterator[None]:
        with ExitStack() as swapped:
            with self.paused():
                self._hold()  # this may take longer than the round
                swapped.enter_context(super().global_weights())
            yield

    def _hold(self) -> None:
        if not (self.delay or self._resting or self._swapped) and any(self.unsent):
            self._held = {one.bucket.index: one.local_copy() for one in self.weights.buckets}
            self._wait_for_device()

    def _catch_up(self) -> None:
        """The step has ended: what was held is not the present state any more."""
        if not self._swapped:
            self._held = {}
            self.exchange.catch_up()

    def _wait_for_device(self) -> None:
        """Threads use streams of their own."""
        for device in {one.flat.device for one in self.weights.buckets if one.flat.is_cuda}:
            torch.cuda.synchronize(device)

    def _all_here(self, seconds: float | None) -> bool:
        began = self.clock.now()
        with self.session.reporting():
            found = self.agreement.all_here(seconds)
        self._waited_for_ranks += self.clock.now() - began
        return found

    def _own_progress(self, finishing: bool, held: dict[int, Tensor] | None) -> RankProgress:
        """What this rank contributes: everything, or, in the middle of a step, what is held."""
        sends = [held is None or one[0].bucket.index in held for one in self.weights.fragments]
        steps = tuple(count * sent for count, sent in zip(self.made, sends, strict=True))
        samples = tuple(count * sent for count, sent in zip(self.samples, sends, strict=True))
        pending = any(count and sent for count, sent in zip(self.unsent, sends, strict=True))
        return RankProgress(steps, samples, finishing, pending)

    def _meet(self, reason: str, finishing: bool = False, held: dict[int, Tensor] | None = None) -> bool:
        """All ranks have announced: exchange the fragment whose turn it is, or everything where all ranks are
        finishing. Returns whether they are. `held` is given in the middle of a step."""
        self.land()
        began = self.clock.now()
        with self.session.reporting():
            everyone = self.agreement.agree(self._own_progress(finishing, held))  # 3
        self._waited_for_ranks += self.clock.now() - began
        ends = all(one.finishing for one in everyone)
        if any(one.pending for one in everyone):
            fragments = range(len(self.unsent)) if ends else [self.fragment]
            self._exchange(fragments, everyone, reason, 0 if ends else self.delay, held)
        self._here, self._waited_for_ranks, self._began = False, 0.0, self.clock.now()
        return ends

    def _exchange(
        self,
        fragments: Sequence[int],
        everyone: Sequence[RankProgress],
        reason: str,
        delay: int,
        held: dict[int, Tensor] | None,
    ) -> None:
        rank, count, last = self.agreement.rank, len(self.unsent), fragments[-1]
        own = everyone[rank]
        parts = {one: shares(everyone, one)[rank] for one in fragments}
        whole = len(fragments) == count
        facts = OuterFacts(
            local_steps=max(own.steps[one] for one in fragments),
            sync_every=0,
            reason=reason if whole else f"{reason}; fragment {last + 1} of {count} is sent",
            fragment=None if whole else last,
            fragments=count,
            delay=delay,
            sync_seconds=self.timing.seconds,
            weight=parts[last],
            rank_steps=tuple(max(one.steps[at] for at in fragments) for one in everyone),
            rank_wait=self._waited_for_ranks,
        )
        buckets = [(bucket, len(everyone) * parts[one]) for one in fragments for bucket in self.weights.fragments[one]]
        sends = held is None or self.weights.fragments[last][0].bucket.index in held
        self.exchange.send_weighted(buckets, facts, last == count - 1, held)  # 4
        self.in_flight = 0
        if not delay:
            self.land()  # where this fails, the steps are still in this rank's weights only
        for one in fragments if sends else []:
            self.unsent[one] = self.made[one] = self.samples[one] = 0
        self.fragment = (last + 1) % count
        if last == count - 1:
            self.step_in_round = 0 if sends else self.step_in_round
            self.global_steps += sum(one.steps[last] for one in everyone)

    def state(self) -> dict[str, Any]:
        return {
            "made": list(self.made),
            "samples": list(self.samples),
            "fragment": self.fragment,
            "global_steps": self.global_steps,
            "elapsed": self.clock.now() - self._began,
        }

    def load_state(self, states: Sequence[Mapping[str, Any]]) -> None:
        """`states` are this rank's own, or those of all old ranks: then all new ranks continue with equal weights."""
        first = states[0]
        self.made = _largest([one.get("made", self.unsent) for one in states], len(self.unsent))
        self.samples = _largest([one.get("samples", []) for one in states], len(self.unsent))
        self.fragment = int(first.get("fragment", 0)) % len(self.unsent)
        self.global_steps, self._counted = int(first.get("global_steps", 0)), 0
        self._held, self._step_began = {}, self.clock.now()
        self._began = self._step_began - float(first.get("elapsed", 0.0))


def _largest(counts: Sequence[Sequence[int]], fragments: int) -> list[int]:
    """By fragment; none where they are those of other fragments."""
    alike = [one for one in counts if len(one) == fragments]
    return [max(column) for column in zip(*alike, strict=True)] if alike else [0] * fragments
