"""One rank of a whole run in the lab: trains a task of the progress benchmark with DDP for a number of steps.

In: a JSON file (LabSpec). Out: one line with the rank's losses, when each step ended, and the levels that were decided.
Gradients are computed for real; a parameter's gradient is held back until it would be ready by the task's stated
compute time, as the timeline of virtual time has it. Where the processor took longer than that, `late` counts it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.events import Decided, Event
from gradwire.simulate.timeline import FORWARD
from harness.progress.tasks import task_of

MARK: Final = "@progress "
# A step's compute that took this much longer than stated, as a share, is late.
LATE: Final = 0.1


@dataclass(frozen=True, slots=True)
class LabSpec:
    """`level` is a level or a controller's name; `extra_steps` is the setting of that name."""

    task: str
    level: str
    seed: int
    steps: int
    extra_steps: float
    directory: str | None

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> LabSpec:
        return cls(**json.loads(path.read_text()))


class Pace:
    """Holds every gradient back until its share of the compute time has passed since the step began."""

    def __init__(
        self, parameters: list[Tensor], compute: float, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self.late = 0
        self._compute, self._clock, self._sleep = compute, clock, sleep
        self._began = 0.0
        for parameter, share in zip(reversed(parameters), ready_shares(parameters), strict=True):
            parameter.register_hook(lambda _, share=share: self._until(share))

    def begin(self) -> None:
        self._began = self._clock()

    def _until(self, share: float) -> None:
        left = self._began + share * self._compute - self._clock()
        if left > 0:
            self._sleep(left)
        elif share == 1 and -left > LATE * self._compute:
            self.late += 1


def ready_shares(parameters: list[Tensor]) -> list[float]:
    """Shares of the compute time after which gradients are ready, last parameter first."""
    total, done, shares = sum(one.numel() for one in parameters), 0, []
    for parameter in reversed(parameters):
        done += parameter.numel()
        shares.append(FORWARD + (1 - FORWARD) * done / total)
    return [*shares[:-1], 1.0]


class Decisions:
    """The levels decided so far, with their step and reason."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str, str]] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, Decided) and (not self.found or self.found[-1][1] != event.level):
            self.found.append((event.step, event.level, event.reason))


def train(spec: LabSpec) -> dict[str, Any]:
    task = task_of(spec.task, spec.steps, Path(spec.directory) if spec.directory else None)
    torch.manual_seed(spec.seed)
    net: nn.Module = task.module()
    parameters = [one for one in net.parameters() if one.requires_grad]
    pace = Pace(parameters, task.compute, time.perf_counter, time.sleep)
    model = DistributedDataParallel(net)
    decisions = Decisions()
    handle = gradwire.attach(model, {"level": spec.level, "extra_steps": spec.extra_steps, "compress": {"warmup": 0}})
    handle.add_sink(decisions)
    optimizer = task.optimizer(parameters)
    schedule = task.schedule(optimizer)
    batches = task.batches(spec.seed, dist.get_rank(), dist.get_world_size())
    losses, ends = [], []
    dist.barrier()
    began = time.perf_counter()
    for _ in range(spec.steps):
        pace.begin()
        optimizer.zero_grad(set_to_none=True)
        loss = task.loss(model, *next(batches))
        loss.backward()  # type: ignore[no-untyped-call]
        task.before_step(parameters)
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
        ends.append(time.perf_counter() - began)
    dist.barrier()
    handle.close()
    return {"losses": losses, "seconds": ends, "late": pace.late, "decided": decisions.found}


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    os.nice(5)  # the emulator has priority: a late emulator distorts the measurement
    found = train(LabSpec.read(Path(sys.argv[1])))
    print(MARK + json.dumps({"rank": dist.get_rank(), **found}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
