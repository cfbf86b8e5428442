"""EventReporter: emits the events of a session's buckets: decided, synchronised, failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gradwire.clock import Clock
from gradwire.errors import LinkError
from gradwire.events import Decided, Failed, Sink, Synchronised
from gradwire.level import Level
from gradwire.types import Bucket, Decision

Explain = Callable[[BaseException], BaseException]


def unexplained(error: BaseException) -> BaseException:
    """The error itself: nothing is known of the ranks."""
    return error


@dataclass(frozen=True, slots=True)
class EventReporter:
    """`explain` returns an error that names the lost rank, where one can be found."""

    sink: Sink
    clock: Clock
    explain: Explain = unexplained

    def decided(self, bucket: Bucket, decision: Decision) -> None:
        now, level, every = self.clock.now(), str(decision.level), decision.sync_every
        self.sink.emit(Decided(now, bucket.step, bucket.index, level, decision.reason, decision.version, every))

    def synchronised(self, bucket: Bucket, level: Level, wire: int, sent: int, seconds: float) -> None:
        now, size = self.clock.now(), bucket.nbytes
        self.sink.emit(Synchronised(now, bucket.step, bucket.index, str(level), size, wire, sent, seconds))

    @contextmanager
    def reporting(self, step: int) -> Iterator[None]:
        """A LinkError that is raised within is emitted as a failure of this step, and raised with its explanation."""
        try:
            yield
        except LinkError as error:
            failure = self.failed(step, error)
            raise failure from failure.__cause__

    def failed(self, step: int, error: BaseException) -> BaseException:
        """Emit the failure; returns the error to raise."""
        error = self.explain(error)
        self.sink.emit(Failed(self.clock.now(), step, f"{type(error).__name__}: {error}"))
        return error
