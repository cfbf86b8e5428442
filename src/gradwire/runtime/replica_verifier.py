"""ReplicaVerifier: checks every few steps that all ranks restored the same gradients."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from gradwire.exchange.verify import digest_of, verify
from gradwire.runtime.event_reporter import EventReporter
from gradwire.runtime.transport_switch import TransportSwitch

# A step, and a digest of what it restored.
Compare = Callable[[int, int], None]


class ReplicaVerifier:
    """Compares digests over the lanes; by `compare` where ranks may fail and rejoin, so that no collective is safe."""

    def __init__(
        self, every: int, reporter: EventReporter, transports: TransportSwitch, compare: Compare | None = None
    ) -> None:
        self._every = every
        self._reporter = reporter
        self._transports = transports
        self._compare = compare

    def check(self, step: int, restored: list[Tensor]) -> None:
        """IntegrityError where ranks restored different bytes. Acts at multiples of `every` only."""
        if step % self._every:
            return
        try:
            digest = digest_of(restored)
            if self._compare is not None:
                self._compare(step, digest)
            else:
                self._transports.current.pipeline.run(verify(digest, step))
        except BaseException as error:
            failure = self._reporter.failed(step, error)
            raise failure from failure.__cause__
