"""Assemble: configuration in, a session out. The only place where concrete classes are chosen."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from gradwire.aggregate.exchange import phases
from gradwire.clock import MonotonicClock
from gradwire.compress.build import check_chain
from gradwire.compress.feedback import Feedback
from gradwire.config import Config
from gradwire.decide.fixed import Fixed
from gradwire.events import Attached
from gradwire.level import Level
from gradwire.observe.tally import Tally
from gradwire.pipeline import Pipeline
from gradwire.session import Plain, Rooms, Session
from gradwire.transport.lanes import open_lanes


@dataclass(frozen=True, slots=True)
class Assembly:
    """A session and the parts its handle talks to."""

    session: Session
    feedback: Feedback
    tally: Tally


def assemble(config: Config, group: dist.ProcessGroup, parameters: int) -> Assembly:
    """Build the rooms over an existing process group. Every member of the group calls this at the same point."""
    level = Level.parse(config.level)
    check_chain(level)
    rank, world_size = dist.get_rank(group), group.size()
    clock, tally = MonotonicClock(), Tally()
    feedback = Feedback(rank, world_size)
    lanes = 0 if level.off or world_size == 1 else phases(level)
    pipeline = Pipeline(open_lanes(group, lanes, config.transport.timeout, clock), on_timing=lambda timing: None)
    controller = Fixed(level, world_size, config.compress.warmup)
    rooms = Rooms(controller, feedback, pipeline, plain_all_reduce(group), tally, clock)
    tally.emit(Attached(clock.now(), rank, world_size, parameters, config.to_dict()))
    return Assembly(Session(rank, world_size, config.compress, rooms), feedback, tally)


def plain_all_reduce(group: dist.ProcessGroup) -> Plain:
    """What DDP does without a hook, to the bit: scale by the reciprocal, then sum on DDP's own group."""
    scale = 1.0 / group.size()

    def all_reduce(buffer: Tensor) -> Future[Tensor]:
        buffer.mul_(scale)
        future: Future[list[Tensor]] = dist.all_reduce(buffer, group=group, async_op=True).get_future()
        return future.then(lambda done: done.value()[0])

    return all_reduce
