"""FSDP hook: what happens to the reduced shards of a backward.

In: the flat reduced shard of one FSDP unit, with the mean over the ranks of this site. Synchronous steps put the mean
over all sites in its place, through the session. In local steps it stays as it is.
"""

from __future__ import annotations

from torch import Tensor
from torch.futures import Future

from gradwire.errors import LinkError
from gradwire.integrations.fsdp_unit import FsdpUnit
from gradwire.runtime.session import Session
from gradwire.transport.lanes.collectives import explain
from gradwire.types import Bucket


class FsdpHook:
    """Turns reduced shards into Buckets, passes them to the session, counts buckets and steps.

    The buckets of a backward are numbered in the order in which units call, which is the same on all replicas.
    """

    def __init__(self, session: Session, replicas: int) -> None:
        self._session = session
        self._replicas = replicas
        self._buckets = 0
        self._partial: dict[FsdpUnit, Tensor] = {}
        self._in_flight: list[Future[Tensor]] = []

    def __call__(self, unit: FsdpUnit, buffer: Tensor) -> None:
        if not self._synchronises_now(unit, buffer):
            return
        if unit.divides_itself:
            buffer.mul_(self._replicas)  # the user's divisor expects the sum over replicas; a session gives the mean
        slices, weights = unit.layout(buffer.numel())
        bucket = Bucket(self._buckets, self._session.step, buffer.numel(), buffer.element_size(), slices, is_last=False)
        self._buckets += 1
        self._in_flight.append(self._session.synchronise(bucket, buffer, weights))
        if not unit.views_only(buffer):
            self._settle()

    def _synchronises_now(self, unit: FsdpUnit, buffer: Tensor) -> bool:
        """After `set_requires_all_reduce(False)` the site's mean is kept, and added to the unit's next one."""
        kept = self._partial.pop(unit, None)
        if kept is not None:
            buffer.add_(kept)
        if unit.requires_all_reduce:
            return True
        self._partial[unit] = buffer.clone()
        buffer.zero_()
        return False

    def end_of_backward(self) -> None:
        """End the step; a backward in which no unit was synchronised is no step."""
        if not self._buckets:
            return
        self._buckets = 0
        self._session.step += 1
        self._settle()

    def _settle(self) -> None:
        """Wait for the buckets in flight; a session's errors keep their type."""
        futures, self._in_flight = self._in_flight, []
        self._session.settle()
        for future in futures:
            try:
                future.wait()
            except RuntimeError as error:
                raise LinkError(explain(error, "AllReduce")) from error


class LocalFsdpHook(FsdpHook):
    """Keeps the mean of this site until `detach`; a gradient that is to be accumulated is accumulated by FSDP2."""

    detached = False

    def __call__(self, unit: FsdpUnit, buffer: Tensor) -> None:
        if self.detached:
            super().__call__(unit, buffer)
        elif unit.divides_itself:
            buffer.mul_(self._replicas)  # the user's divisor expects the sum over replicas

    def detach(self) -> None:
        """Synchronise gradients from the next backward on."""
        self.detached = True
