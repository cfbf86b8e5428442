"""Sinks: pass events to other tools. Each is added with `handle.add_sink(...)`; none imports the tool.

    handle.add_sink(Scalars(SummaryWriter()))       anything with add_scalar(tag, value, step)
    handle.add_sink(Dictionaries(wandb.log))        anything that takes a dictionary and a step
    handle.add_sink(Logging())                      standard logging, one sentence per decision, plan or fault
    handle.add_sink(lambda event: ...)              your own code

Sinks are called from the training thread and from gradwire's threads, one event at a time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gradwire.events import (
    Advised,
    Attached,
    Decided,
    Ended,
    Event,
    Failed,
    Faulted,
    NonFinite,
    Noted,
    Planned,
    Priced,
    Sensed,
    Stepped,
    TransportChosen,
    Warned,
)
from gradwire.observe.level_prices import more, shown


class Writer(Protocol):
    """The part of TensorBoard's SummaryWriter that Scalars uses."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any: ...


def numbers(event: Event) -> tuple[int, dict[str, float]]:
    """The step and the scalars of an event; no scalars if it has no numbers to plot."""
    match event:
        case Stepped():
            names = ("seconds", "compute", "encode", "wire", "wait", "residual")
            found = {f"step/{name}": getattr(event, name) for name in names}
            found["bytes/sent"] = event.wire_bytes
            found["bytes/times_less"] = event.plain_bytes / event.wire_bytes if event.wire_bytes else None
        case Sensed():
            found = {
                "network/mbit_per_second": None if event.bandwidth is None else event.bandwidth * 8 / 1e6,
                "network/rtt_ms": None if event.rtprop is None else event.rtprop * 1e3,
                "network/queueing_ms": event.queueing * 1e3,
                "predicted/plain_step_seconds": event.predicted_plain,
            }
        case Decided(bucket=0):
            found = {"decision/version": event.version}
        case Noted():
            found = {"noted/loss": event.loss, "noted/accuracy": event.accuracy}
            found |= {f"noted/{name}": value for name, value in event.values.items()}
        case _:
            return 0, {}
    return event.step, {f"gradwire/{name}": float(value) for name, value in found.items() if value is not None}


class Scalars:
    """For an object with `add_scalar`. A lock makes it safe to call from several threads."""

    def __init__(self, writer: Writer) -> None:
        self._writer, self._lock = writer, threading.Lock()

    def emit(self, event: Event) -> None:
        step, found = numbers(event)
        with self._lock:
            for tag, value in found.items():
                self._writer.add_scalar(tag, value, step)


class Dictionaries:
    """For a function such as wandb's or mlflow's log: `log(dictionary, step=step)`. A logger whose run belongs to one
    thread, as in mlflow, needs its run id: `lambda found, step: mlflow.log_metrics(found, step, run_id=run_id)`.

    Steps never decrease: some loggers refuse a lower step, so late values are logged with the latest step.
    """

    def __init__(self, log: Callable[..., Any]) -> None:
        self._log, self._lock, self._step = log, threading.Lock(), 0

    def emit(self, event: Event) -> None:
        step, found = numbers(event)
        if not found:
            return
        with self._lock:
            self._step = max(self._step, step)
            values: Mapping[str, float] = found
            self._log(dict(values), step=self._step)


class Logging:
    """For standard logging: decisions and plans at INFO, faults at WARNING and above, steps at DEBUG."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("gradwire")

    def emit(self, event: Event) -> None:  # noqa: PLR0912 - one branch for each kind of event
        match event:
            case Decided(bucket=0):
                self._logger.info("step %d: level %s: %s", event.step, event.level, event.reason)
            case Planned():
                self._logger.info("step %d: plan %d by %s: %s", event.step, event.version, event.planner, event.reason)
            case Advised():
                share = 100 * event.gain
                self._logger.info("bucket_cap_mb=%d would save about %.0f %% of a step", event.bucket_cap_mb, share)
            case TransportChosen():
                self._logger.info("step %d: transport %s: %s", event.step, event.transport, event.reason)
            case Priced():
                sentence = f"{more(event.predicted)} more steps predicted; {shown(event)}"
                self._logger.info("step %d: %s: %s", event.step, event.level, sentence)
            case Attached():
                self._logger.info("attached on rank %d of %d", event.rank, event.world_size)
            case Ended():
                self._logger.info("ended after %d steps", event.step)
            case Faulted(kind="guard") if self._logger.name == "gradwire":
                pass  # the runtime has logged it there
            case Faulted():
                self._logger.warning("step %d: %s: %s", event.step, event.kind, event.detail)
            case NonFinite():
                self._logger.warning("step %d: %d elements were NaN or infinite", event.step, event.elements)
            case Warned():
                self._logger.warning("%s", event.message)
            case Failed():
                self._logger.error("step %d: %s", event.step, event.error)
            case Stepped():
                self._logger.debug("step %d: %.4f s at %s", event.step, event.seconds, event.level)
