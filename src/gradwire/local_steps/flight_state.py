"""Flight state: the part of a checkpoint that is an exchange which was sent and not applied yet.

It is saved when its mean has arrived, so that nothing has to be sent again: the mean, this rank's weights when it was
sent (by bucket), the same of the buffers, and what the outer step will report.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from gradwire.errors import ConfigError
from gradwire.local_steps.divergence import Divergence
from gradwire.local_steps.mean_state import mean_by_name
from gradwire.local_steps.outer_exchange import Flight
from gradwire.local_steps.outer_report import OuterFacts
from gradwire.local_steps.rounds import Rounds


def state_of(rounds: Rounds) -> dict[str, Any] | None:
    """Waits until the mean is here; None where nothing is in flight."""
    rounds.exchange.arrive()
    flight = rounds.exchange.flight
    if flight is None or flight.arrived is None:
        return None
    sent = ((one.bucket.index, values) for one, values in zip(flight.buckets, flight.sent, strict=True))
    return {
        "in_flight": rounds.in_flight,
        "step": flight.step,
        "mean": {str(one.bucket.index): one.gradient.clone() for one in flight.buckets},
        "sent": {str(index): values.clone() for index, values in sent if values is not None},
        "facts": dataclasses.asdict(flight.facts),
        "divergence": dataclasses.asdict(flight.arrived),
        "buffers": rounds.buffers.in_flight() if flight.with_buffers else None,
    }


def check(rounds: Rounds, state: Mapping[str, Any]) -> None:
    """ConfigError where a state from the middle of a round has other fragments."""
    fragments, expected = len(state.get("unsent", [0])), len(rounds.unsent)
    if fragments != expected and ("local" in state or "flight" in state):
        raise ConfigError(
            f"load_state_dict: this state was saved in the middle of a round with num_fragments = {fragments}, and "
            f"this job has {expected}; set num_fragments to {fragments}, or save after handle.synchronise()"
        )


def load(rounds: Rounds, saved: Sequence[Mapping[str, Any]], weights: Sequence[float] | None) -> None:
    """Put an exchange that has arrived in flight. `saved` is this rank's own, or those of all old ranks, which have
    these weights in their mean."""
    first, sent = saved[0], mean_by_name([one["sent"] for one in saved], weights)
    buckets = [one for one in rounds.weights.buckets if str(one.bucket.index) in first["mean"]]
    for one in buckets:
        one.set_gradients()
        one.gradient.copy_(first["mean"][str(one.bucket.index)])
    rounds.in_flight = int(first["in_flight"])
    kept = [sent[str(one.bucket.index)].to(one.flat.device) for one in buckets]
    facts, found = OuterFacts(**first["facts"]), Divergence(**first["divergence"])
    rounds.exchange.flight = Flight(buckets, facts, int(first["step"]), first["buffers"] is not None, kept, found)
    if first["buffers"] is not None:
        parts = {part: mean_by_name([one["buffers"][part] for one in saved], weights) for part in ("sent", "arrived")}
        rounds.buffers.load_in_flight(parts)
