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

With fragments each has its own seconds / fragments, one after another, and the weights are those of the steps since it
was last sent. Clocks are never compared: a round begins on every rank with the end of the last exchange.

A rank that has no more steps to make is finishing (`finish`): it takes part in the others' rounds with weight 0 until
all ranks are finishing, and the last exchange has everything that is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gradwire.local_steps.outer_exchange import OuterParts
from gradwire.local_steps.outer_report import OuterFacts
from gradwire.local_steps.round_agreement import RankProgress, RoundAgreement, shares
from gradwire.local_steps.rounds import Rounds

# Seconds that a rank stands still at least: the one that announces last has the others' announcements already, and
# needs only the time in which a thread of a busy machine reads them.
LEAST_WAIT: Final = 0.1


@dataclass(frozen=True, slots=True)
class RoundTiming:
    """Seconds of a round, and the share of it for which a rank stands still for slower ones at its end."""

    seconds: float
    wait: float

    @property
    def longest_wait(self) -> float:
        return max(LEAST_WAIT, self.wait * self.seconds)


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
        self._began = self.clock.now()

    @property
    def length(self) -> str:
        return f"{self.timing.seconds:g} s"

    def count_samples(self, count: int) -> None:
        """The step that follows is made with these samples, and with those of earlier calls since the last step."""
        self._counted += count

    def count_step(self, made: bool = True) -> None:
        self._begin_step()
        counted, self._counted = self._counted, 0
        if made:
            self.made = [one + 1 for one in self.made]
            self.samples = [one + counted for one in self.samples]
        if self.clock.now() - self._began < self.timing.seconds / len(self.unsent):
            return  # 1
        first = not self.agreement.announced
        if first:
            self.agreement.announce()
        if self._all_here(self.timing.longest_wait if first else 0.0):  # 2
            self._meet(f"{self.timing.seconds / len(self.unsent):g} s of local steps have passed", finishing=False)

    def finish(self, reason: str) -> None:
        """Synchronise all of the weights. Every rank calls this, and each when it has made its last step: until all
        have, this rank takes part in their rounds."""
        while True:
            if not self.agreement.announced:
                self.agreement.announce()
            self._all_here(None)
            if self._meet(reason, finishing=True):
                return

    def meet(self, reason: str) -> None:
        self.finish(reason)

    def _all_here(self, seconds: float | None) -> bool:
        began = self.clock.now()
        with self.session.reporting():
            found = self.agreement.all_here(seconds)
        self._waited_for_ranks += self.clock.now() - began
        return found

    def _meet(self, reason: str, finishing: bool) -> bool:
        """All ranks have announced: exchange the fragment whose turn it is, or everything where all ranks are
        finishing. Returns whether they are."""
        self.land()
        began = self.clock.now()
        own = RankProgress(tuple(self.made), tuple(self.samples), finishing, any(self.unsent))
        with self.session.reporting():
            everyone = self.agreement.agree(own)  # 3
        self._waited_for_ranks += self.clock.now() - began
        ends = all(one.finishing for one in everyone)
        if not ends:
            self._exchange([self.fragment], everyone, reason, self.delay)
        elif any(one.pending for one in everyone):
            self._exchange(range(len(self.unsent)), everyone, reason, 0)
        self._waited_for_ranks, self._began = 0.0, self.clock.now()
        return ends

    def _exchange(self, fragments: Sequence[int], everyone: Sequence[RankProgress], reason: str, delay: int) -> None:
        rank, count, last = self.agreement.rank, len(self.unsent), fragments[-1]
        parts = {one: shares(everyone, one)[rank] for one in fragments}
        whole = len(fragments) == count
        facts = OuterFacts(
            local_steps=max(self.made[one] for one in fragments),
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
        self.exchange.send_weighted(buckets, facts, with_buffers=last == count - 1)  # 4
        for one in fragments:
            self.unsent[one] = self.made[one] = self.samples[one] = 0
        self.in_flight = 0
        if not delay:
            self.land()
        self.fragment = (last + 1) % count
        if last == count - 1:
            self.step_in_round = 0
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
        self._began = self.clock.now() - float(first.get("elapsed", 0.0))


def _largest(counts: Sequence[Sequence[int]], fragments: int) -> list[int]:
    """By fragment; none where they are those of other fragments."""
    alike = [one for one in counts if len(one) == fragments]
    return [max(column) for column in zip(*alike, strict=True)] if alike else [0] * fragments
