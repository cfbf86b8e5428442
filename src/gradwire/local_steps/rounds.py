"""Rounds: what happens after every step of the inner optimizer.

    1. what was sent `delay` steps ago is applied (local_steps/outer_exchange.py)
    2. the fragment whose turn it is after this step of the round is sent (local_steps/fragments.py): all of the weights
       after the last step where there is one fragment. Without a delay it is applied at once
    3. a round of `sync_every` steps begins again

A fragment is applied before or with the step at which the next one is sent, so at most one is in flight. A step of the
session is an exchange: a round where there is one fragment. Everything here runs on the training thread, inside the
optimizer's `step`; the exchange runs in the session's threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from gradwire.errors import ConfigError
from gradwire.local_steps.fragments import fragment_at
from gradwire.local_steps.outer_exchange import OuterExchange, OuterParts
from gradwire.local_steps.outer_report import OuterFacts


class Rounds:
    """`steps` counts this rank's steps, `step_in_round` those since the round began, `unsent` for each fragment those
    since it was last sent, and `in_flight` those since the exchange in flight was sent."""

    def __init__(self, parts: OuterParts, sync_every: int, delay: int = 0) -> None:
        self.exchange = OuterExchange(parts)
        self.session = parts.session
        self.weights, self.outer, self.buffers = parts.weights, parts.outer, parts.buffers
        self.sync_every, self.delay = sync_every, delay
        self.steps = self.step_in_round = self.in_flight = 0
        self.unsent = [0] * len(self.weights.fragments)
        self._swapped = False

    @property
    def pending(self) -> bool:
        """Whether some steps of this rank are not in the global weights yet."""
        return self.exchange.flight is not None or any(self.unsent)

    @property
    def length(self) -> str:
        """Of a round, in words."""
        return f"{self.sync_every} steps"

    def count_step(self) -> None:
        """A step of the inner optimizer was made, or skipped by a loss scaler."""
        self._begin_step()
        fragment = fragment_at(self.step_in_round, self.sync_every, len(self.unsent))
        if fragment is not None:
            self._send(fragment)  # 2
        if self.step_in_round >= self.sync_every:
            self.step_in_round = 0  # 3

    def _begin_step(self) -> None:
        """Count the step, and apply what is due."""
        if self._swapped:
            raise ConfigError(
                "global_weights: the optimizer made a step inside `with handle.global_weights()`, where the model has "
                "other weights than training; only evaluate there"
            )
        self.steps += 1
        self.step_in_round += 1
        self.in_flight += 1
        self.unsent = [one + 1 for one in self.unsent]
        if self.in_flight >= self.delay:
            self.land()  # 1

    def land(self) -> None:
        """Apply what is in flight now. Every rank calls this after the same step."""
        self.exchange.apply(self.in_flight)

    def finish(self, reason: str) -> None:
        """Synchronise what is not in the global weights yet, for this reason. Every rank calls this after the same
        step."""
        if self.pending:
            self.end_round(reason)

    def meet(self, reason: str) -> None:
        """All ranks are at the same point afterwards, with nothing in flight."""
        self.land()

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs beside the counts that all kinds of rounds have."""
        return {}

    def load_state(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Load what `state` returned: of this rank, or of all old ranks."""

    def end_round(self, reason: str) -> None:
        """Synchronise all of the weights now, for this reason. Every rank calls this after the same step."""
        self.land()
        facts = OuterFacts(max(self.unsent), self.sync_every, reason, None, len(self.unsent))
        self.exchange.send(self.weights.buckets, facts, with_buffers=True)
        self.exchange.apply()
        self.unsent, self.step_in_round = [0] * len(self.unsent), 0

    def take_place(self, step: int, steps: int) -> None:
        """This rank received the weights of the others, who are at this step of the session, after so many of their
        own, while its exchange was in flight. What it sent itself does not count."""
        self.session.step, self.steps = step + 1, steps
        if self.exchange.flight is not None:
            self.exchange.flight.step = step

    def _send(self, fragment: int) -> None:
        self.land()
        count = len(self.unsent)
        reason, number = f"all {self.sync_every} local steps were made", None
        if count > 1:
            place = f"after step {self.step_in_round} of {self.sync_every}"
            reason, number = f"fragment {fragment + 1} of {count} is sent {place}", fragment
        facts = OuterFacts(self.unsent[fragment], self.sync_every, reason, number, count, self.delay)
        self.exchange.send(self.weights.fragments[fragment], facts, with_buffers=fragment == count - 1)
        self.unsent[fragment] = self.in_flight = 0
        if not self.delay:
            self.land()

    @contextmanager
    def global_weights(self) -> Iterator[None]:
        """The model has the weights and buffers inside that all ranks share: those that were applied last."""
        if self._swapped:
            raise ConfigError("global_weights: the model has its global weights already; leave the outer block first")
        self._swapped = True
        try:
            with self.weights.swapped_in(), self.buffers.swapped_in():
                yield
        finally:
            self._swapped = False
