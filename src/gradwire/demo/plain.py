"""PlainLog: the recording of a run without gradwire, so that a report can lay both side by side.

Only what plain DDP shows from outside is written: the whole step's time, and the bytes its all-reduce sends.
"""

from __future__ import annotations

from pathlib import Path

import torch.distributed as dist

from gradwire.clock import MonotonicClock
from gradwire.events import Attached, Stepped
from gradwire.observe.recorder import Recorder, Tape
from gradwire.observe.watch import Told, Watch, attached


class PlainLog:
    """Takes what a Handle takes; writes nothing where no directory is named."""

    def __init__(self, record: str, parameters: int) -> None:
        rank, world_size = dist.get_rank(), dist.get_world_size()
        self._clock = MonotonicClock()
        recorder = Recorder(Tape(Path(record), rank, world_size), self._clock) if record else None
        self._watch = Watch(self._clock, recorder)
        self._gradient = 4 * parameters
        self._plain = 2 * self._gradient * (world_size - 1) // world_size
        self._step = 0
        about: Attached = attached(self._clock.now(), (rank, world_size), parameters, {"plain DDP": True})
        self._watch.emit(about)

    def stepped(self, seconds: float) -> None:
        sizes = (self._gradient, self._plain, self._plain)
        self._watch.emit(Stepped(self._clock.now(), self._step, seconds, 0.0, 0.0, 0.0, 0.0, *sizes, "plain DDP"))
        self._step += 1

    def note(
        self,
        *,
        accuracy: float | None = None,
        epoch: float | None = None,
        total_steps: int | None = None,
        **values: float,
    ) -> None:
        self._watch.note(self._step, Told(None, accuracy, epoch, total_steps, values))

    def close(self) -> None:
        self._watch.close(self._step)
