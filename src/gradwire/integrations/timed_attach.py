"""Timed attach: what local steps by time (`sync_seconds`) have in addition to those by count."""

from __future__ import annotations

import torch.distributed as dist

from gradwire.clock import MonotonicClock
from gradwire.config import Config
from gradwire.local_steps.model_parameters import ModelParameters
from gradwire.local_steps.outer_exchange import OuterParts
from gradwire.local_steps.round_agreement import RoundAgreement
from gradwire.local_steps.step_counter import StepCounter
from gradwire.local_steps.timed_rounds import RoundTiming, TimedRounds
from gradwire.runtime.pipeline import Pipeline
from gradwire.runtime.rank_agreement import fact_checker
from gradwire.sites.job_record import facts_of
from gradwire.transport.lanes.open_lanes import duplicate_group, open_lanes


def exchange_group(group: dist.ProcessGroup, config: Config) -> dist.ProcessGroup:
    """The group that exchanges use. Rounds of so many steps end after the same forward pass on all ranks, and use the
    model's. Rounds by time do not: DDP itself sends messages by the model's group in its second forward pass, which one
    rank makes before the exchange and another one after it, so exchanges have a group of their own."""
    if not config.sync_seconds:
        return group
    fact_checker(config, group)(facts_of(config))  # before ranks with other settings are waited for
    return duplicate_group(group, config.transport.timeout)


def timed_rounds(parts: OuterParts, config: Config, group: dist.ProcessGroup) -> TimedRounds:
    timing, world_size = RoundTiming(config.sync_seconds, config.sync_wait), group.size()
    pipeline = None
    if world_size > 1:
        lanes = open_lanes(group, 1, config.transport.timeout, MonotonicClock())
        pipeline = Pipeline(lanes, lambda timing: None)
    return TimedRounds(parts, timing, RoundAgreement(pipeline, group.rank(), world_size), config.fragment_sync_delay)


def count_timed_steps(parameters: ModelParameters, rounds: TimedRounds) -> StepCounter:
    """A step that a loss scaler skips counts as time, but not as a contribution."""

    def on_step() -> None:
        rounds.count_step(counter.made)

    counter = StepCounter(parameters, on_step)
    return counter
