"""Plain: records a run of DDP without gradwire, so that a report can compare it with a gradwire run.

It writes the time of each step, measured as gradwire does; the part that waits for the network, from DDP's runtime
statistics; and the bytes of the all-reduce, or those that `sent` counts.
"""

from __future__ import annotations

from collections.abc import Callable
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

    def __init__(
        self,
        record: str,
        model: DistributedDataParallel,
        level: str = "plain DDP",
        sent: Callable[[], int] | None = None,
    ) -> None:
        """`sent` is how many bytes of gradients were reduced so far; None: all of them."""
        rank, world_size = dist.get_rank(), dist.get_world_size()
        self._clock = MonotonicClock()
        recorder = Recorder(RecorderConfig(Path(record), rank, world_size), self._clock) if record else None
        self._bus = EventBus(self._clock, recorder)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        self._model = model
        # By default DDP times its buckets only in one step of a hundred.
        model._set_ddp_runtime_logging_sample_rate(1)
        self.level, self._sent, self._reduced = level, sent, 0
        self._gradient = 4 * parameters
        self._plain = all_reduce_bytes(self._gradient, world_size)
        self._step = 0
        self._last: float | None = None
        self._seconds: float | None = None
        about: Attached = attached(self._clock.now(), (rank, world_size), parameters, {"level": level})
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
        self._bus.emit(Stepped(at, step, seconds, seconds - wire, 0.0, wire, 0.0, *self._sizes(), self.level))

    def _sizes(self) -> tuple[int, int, int]:
        """Bytes of the gradient, of what this rank sent since the last call, and of what plain DDP sends."""
        if self._sent is None:
            return self._gradient, self._plain, self._plain
        before, self._reduced = self._reduced, self._sent()
        return self._gradient, all_reduce_bytes(self._reduced - before, dist.get_world_size()), self._plain

    @property
    def wire_bytes(self) -> int:
        """Bytes that this rank sent in a mean step."""
        total = self._gradient * max(1, self._step) if self._sent is None else self._sent()
        return all_reduce_bytes(total, dist.get_world_size()) // max(1, self._step)

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
            at, step = self._clock.now(), self._step - 1
            self._bus.emit(Stepped(at, step, self._seconds, 0.0, 0.0, 0.0, 0.0, *self._sizes(), self.level))
        self._bus.close(self._step)
