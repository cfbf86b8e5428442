"""Plain: records a run of plain DDP, so that a report can compare it with a gradwire run.

It writes the time of each step, measured as gradwire does; the part that waits for the network, from DDP's runtime
statistics; and the bytes of the all-reduce.
"""

from __future__ import annotations

from pathlib import Path

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gradwire.clock import MonotonicClock
from gradwire.events import Attached, Stepped
from gradwire.observe.event_bus import EventBus, UserNote, attached
from gradwire.observe.recorder import Recorder, RecorderConfig
from gradwire.types import all_reduce_bytes


class PlainLog:
    """Has a Handle's `note` and `close`; writes nothing if `record` is empty."""

    def __init__(self, record: str, model: DistributedDataParallel) -> None:
        rank, world_size = dist.get_rank(), dist.get_world_size()
        self._clock = MonotonicClock()
        recorder = Recorder(RecorderConfig(Path(record), rank, world_size), self._clock) if record else None
        self._bus = EventBus(self._clock, recorder)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        self._model = model
        # By default DDP times its buckets only in one step of a hundred.
        model._set_ddp_runtime_logging_sample_rate(1)
        self._gradient = 4 * parameters
        self._plain = all_reduce_bytes(self._gradient, world_size)
        self._step = 0
        self._last: float | None = None
        self._seconds: float | None = None
        about: Attached = attached(self._clock.now(), (rank, world_size), parameters, {"plain DDP": True})
        self._bus.emit(about)

    def stepped(self) -> None:
        """A step ended. Write the one before it: DDP has its statistics when the next forward pass begins."""
        now = self._clock.now()
        if self._seconds is not None:
            self._write(now, self._step - 1, self._seconds, self._exposed())
        self._seconds = None if self._last is None else now - self._last
        self._last = now
        self._step += 1

    def _exposed(self) -> float:
        """Seconds of the last backward pass in which communication was not hidden behind computation."""
        facts = self._model._get_ddp_logging_data()
        spent = facts.get("backward_comm_time", 0) - facts.get("backward_compute_comm_overlap_time", 0)
        return max(0.0, float(spent) / 1e9)

    def _write(self, at: float, step: int, seconds: float, exposed: float) -> None:
        wire = min(exposed, seconds)
        sizes = (self._gradient, self._plain, self._plain)
        self._bus.emit(Stepped(at, step, seconds, seconds - wire, 0.0, wire, 0.0, *sizes, "plain DDP"))

    def note(
        self,
        loss: float | None = None,
        *,
        accuracy: float | None = None,
        epoch: float | None = None,
        total_steps: int | None = None,
        **values: float,
    ) -> None:
        self._bus.note(self._step, UserNote(loss, accuracy, epoch, total_steps, values))

    def close(self) -> None:
        """Write the last step, without its parts: DDP has no statistics of it yet."""
        if self._seconds is not None:
            sizes = (self._gradient, self._plain, self._plain)
            at, step = self._clock.now(), self._step - 1
            self._bus.emit(Stepped(at, step, self._seconds, 0.0, 0.0, 0.0, 0.0, *sizes, "plain DDP"))
        self._bus.close(self._step)
