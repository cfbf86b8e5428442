"""Error feedback: keeps what was not sent, by parameter, and adds it to later gradients.

Two residuals per bucket. The worker residual is this rank's own unsent gradient. The owner residual belongs to a shard
whose sum this rank re-encodes. It is in units of the mean, so folding it into the worker residual multiplies it by the
world size. The velocity of DGC's momentum correction is kept too, where that is in use.

What a lossy lane did not deliver returns to the worker residual when its receivers have reported it, which may be
after the exchange has ended. Such a return is added by `defer` and made before the residual is used again.

Residuals are float32, or bfloat16 in half the memory (compress/residual.py); velocities are float32.

A step whose result is not applied (a loss scaler found an overflow) must not change this state: a bucket's state can be
`saved` before its exchanges begin and `restore`d when the step has ended.

After a change of world size the total that is not sent yet must stay the same. The residuals of the old ranks r,
r + new, r + 2 new, ... are summed into new rank r and scaled by new / old.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradwire.compress.parameter_memory import ParameterMemory
from gradwire.compress.residual import DTYPES, ResidualType
from gradwire.errors import ConfigError, LinkError
from gradwire.types import Bucket

Place = tuple[int, int]  # (start, numel) of a shard within its bucket
# Residuals of gradients on a device are in host memory: there they are encoded.
HOST = torch.device("cpu")
MakeZeros = Callable[[int, torch.dtype], Tensor]


def host_zeros(numel: int, dtype: torch.dtype) -> Tensor:
    return torch.zeros(numel, dtype=dtype)


@dataclass(frozen=True, slots=True)
class SavedResiduals:
    """A bucket's residuals and velocity as they were before a step."""

    bucket: Bucket
    residual: Tensor
    owned: dict[Place, Tensor]
    velocity: Tensor | None


class ErrorFeedback:
    """The residuals of one rank."""

    def __init__(self, rank: int, world_size: int, kept: ResidualType = "float32") -> None:
        self._rank = rank
        self._world_size = world_size
        self._dtype = DTYPES[kept]
        self._residual = ParameterMemory("residual", self._dtype, seed=rank)
        self._velocity = ParameterMemory("velocity")
        self._owned: dict[int, dict[Place, Tensor]] = {}
        self._aside: dict[str, dict[str, Tensor]] | None = None
        self._step = -1
        self._served: set[int] = set()  # buckets of the current step; other threads may be exchanging them
        self._returns: deque[tuple[int, Callable[[], None]]] = deque()  # by bucket; threads of exchanges append

    def worker(self, bucket: Bucket, device: torch.device) -> Tensor:
        """This rank's flat residual of the bucket, carried over by parameter name when the layout changed."""
        if bucket.step != self._step:
            self._step = bucket.step
            self._served.clear()
        fits = self._residual.fits(bucket)
        known = self._residual.find(bucket.index)
        if fits and known is not None and known.device != device:  # another path encodes this bucket from now on
            self.settle(bucket.index)
            self.fold(bucket.index)
            self._residual.put(bucket, known.to(device))
            if self._velocity.fits(bucket):
                self._velocity.put(bucket, self._velocity.of(bucket, device).to(device))
        self.settle(bucket.index if fits else None)
        if not fits:
            # Shard positions are invalid when any bucket changes, except those of buckets already laid out in this
            # step: they share no parameter with the buckets to come, and their exchanges are using them.
            for index in [i for i in list(self._owned) if i == bucket.index or i not in self._served]:
                self.fold(index)
        self._served.add(bucket.index)
        return self._residual.of(bucket, device)

    def defer(self, bucket: Bucket, complete: Callable[[], None]) -> None:
        """`complete` waits for reports of receivers and returns what they did not get to the bucket's residual. Called
        from any thread, before the bucket's exchange ends."""
        self._returns.append((bucket.index, complete))

    def settle(self, index: int | None = None) -> None:
        """Make the deferred returns of one bucket, or of all; LinkError where a receiver is lost. Called between
        exchanges of these buckets."""
        for _ in range(len(self._returns)):
            own, complete = self._returns.popleft()
            if index is None or own == index:
                complete()
            else:
                self._returns.append((own, complete))

    def settle_last(self) -> None:
        """As `settle`, before the connections are closed. A peer that closed before it reported is no error: nothing is
        sent any more."""
        while self._returns:
            with suppress(LinkError):
                self._returns.popleft()[1]()

    def owner(self, bucket: Bucket, place: Place, zeros: MakeZeros = host_zeros) -> Tensor:
        """The residual of a shard that this rank owns; a caller that changes the chunk layout must `fold` first."""
        owned = self._owned.setdefault(bucket.index, {})
        if place not in owned:
            owned[place] = zeros(place[1], self._dtype)
        return owned[place]

    def velocity(self, bucket: Bucket, gradient: Tensor, momentum: float) -> Tensor:
        """DGC's momentum correction, applied before the residual: velocity = momentum x velocity + gradient. The
        gradient becomes the velocity; NaN and infinity pass through and do not enter the velocity."""
        known = self._velocity.of(bucket, gradient.device)
        finite = gradient.isfinite()
        known.mul_(momentum).add_(torch.where(finite, gradient, 0.0))
        gradient.copy_(torch.where(finite, known, gradient))
        return known

    def fold(self, index: int) -> None:
        """Add a bucket's owner residuals to its worker residual."""
        for (start, numel), left in self._owned.pop(index, {}).items():
            residual = self._residual.find(index)
            assert residual is not None, "an owner of a shard is also a worker"
            self._residual.add(residual[start : start + numel], left, self._world_size)

    def add(self, bucket: Bucket, start: int, values: Tensor) -> None:
        """Add values to the residual of the bucket's elements from `start` on, in host memory."""
        stored = self.worker(bucket, HOST)[start : start + values.numel()]
        self._residual.add(stored, values)

    def pending(self, bucket: Bucket) -> bool:
        """Whether this bucket may have a residual, also from another layout or a checkpoint."""
        return self._residual.holds(bucket)

    def flush(self, bucket: Bucket, gradient: Tensor) -> SavedResiduals:
        """Add the residual to the gradient and clear it, for a step without compression. Returns what was cleared."""
        saved = self.take(bucket)
        gradient.add_(saved.residual.to(gradient.device))
        return saved

    def take(self, bucket: Bucket) -> SavedResiduals:
        """Clear the residual, which the caller adds to the gradient. Returns what was cleared."""
        residual = self.worker(bucket, HOST)
        self.fold(bucket.index)
        velocity = self._velocity.of(bucket, HOST) if self._velocity.holds(bucket) else None
        self._residual.forget(bucket)
        self._velocity.forget(bucket)
        return SavedResiduals(bucket, residual, {}, velocity)

    def saved(self, bucket: Bucket, old: SavedResiduals | None = None) -> SavedResiduals:
        """A copy of the state of a bucket that `worker` was called for, in an old copy's memory where it fits."""
        residual = self._residual.find(bucket.index)
        assert residual is not None, "saved before worker()"
        velocity = self._velocity.of(bucket, residual.device) if self._velocity.holds(bucket) else None
        owned = {
            place: _copy(left, old.owned.get(place) if old else None)
            for place, left in self._owned.get(bucket.index, {}).items()
        }
        momentum = None if velocity is None else _copy(velocity, old.velocity if old else None)
        return SavedResiduals(bucket, _copy(residual, old.residual if old else None), owned, momentum)

    def restore(self, saved: SavedResiduals) -> None:
        """Return to the saved (or flushed) state; no exchange of the bucket may be running."""
        self.settle(saved.bucket.index)
        device = saved.residual.device
        self._residual.of(saved.bucket, device).copy_(saved.residual)
        for place, left in self._owned.get(saved.bucket.index, {}).items():
            before = saved.owned.get(place)
            left.zero_() if before is None else left.copy_(before)
        if saved.velocity is not None:
            self._velocity.of(saved.bucket, device).copy_(saved.velocity)
        else:
            self._velocity.forget(saved.bucket)

    def set_aside(self) -> None:
        """Between steps: exclude the current residuals from sending until `take_up`; `state_dict` still has them."""
        if self._aside is None:
            state = self.state_dict()
            self.load_state_dict({**state, "residuals": {}, "velocities": {}})
            self._aside = {"residuals": state["residuals"], "velocities": state.get("velocities", {})}

    def take_up(self) -> None:
        """Between steps: add what was set aside to the residuals again."""
        self.load_state_dict(self.state_dict())

    @property
    def aside(self) -> bool:
        return self._aside is not None

    def rescale(self, factor: float) -> None:
        """Multiply all residuals, after the gradient's unit changed (a loss scaler's new scale). Residuals added since
        something was set aside already have the new unit."""
        self.settle()
        if self._aside is not None:
            for value in (value for kind in self._aside.values() for value in kind.values()):
                self._residual.scale(value, factor)
            return
        self._residual.rescale(factor)
        self._velocity.rescale(factor)
        for left in (left for owned in self._owned.values() for left in owned.values()):
            self._residual.scale(left, factor)

    def state_dict(self) -> dict[str, Any]:
        """This rank's residuals and velocities by parameter name; owner residuals are folded in."""
        self.settle()
        for index in list(self._owned):
            self.fold(index)
        aside = self._aside or {"residuals": {}, "velocities": {}}
        residuals = _sum(self._residual.state(), aside["residuals"])
        state = {"rank": self._rank, "world_size": self._world_size, "residuals": residuals}
        velocities = _sum(self._velocity.state(), aside["velocities"])
        return {**state, "velocities": velocities} if velocities else state

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Load one rank's state, or the states of all ranks of a job of another size."""
        states = as_states(state)
        residuals = merge_residuals(states, self._rank, self._world_size)
        velocities = merge_residuals(states, self._rank, self._world_size, "velocities")
        self.settle()
        self._aside = None
        self._owned.clear()
        self._served.clear()
        self._residual.load(residuals)
        self._velocity.load(velocities)


def _sum(one: dict[str, Tensor], other: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`one` with the tensors of `other` added by name, which are float32 then."""
    for name, value in other.items():
        known = one.get(name)
        one[name] = value.clone() if known is None else known.float() + value.to(known.device)
    return one


def _copy(source: Tensor, into: Tensor | None) -> Tensor:
    return into.copy_(source) if into is not None and into.shape == source.shape else source.clone()


def as_states(given: Any) -> list[Mapping[str, Any]]:
    """The argument of `load_state_dict` as a list of states; ConfigError for anything else."""
    states = [given] if isinstance(given, Mapping) else given
    if not isinstance(states, Sequence) or isinstance(states, str | bytes) or not states:
        raise ConfigError(
            f"load_state_dict: {given!r:.80} is not a state; pass what handle.state_dict() returned, or a list with "
            "those of all ranks"
        )
    for state in states:
        missing = [
            key for key in ("rank", "world_size", "residuals") if not isinstance(state, Mapping) or key not in state
        ]
        if missing:
            raise ConfigError(
                f"load_state_dict: {_kind(state)} without {', '.join(map(repr, missing))} is not a state; pass "
                "what handle.state_dict() returned, or omit the call to start without residuals"
            )
    return list(states)


def _kind(state: object) -> str:
    return f"a mapping of {len(state)} entries" if isinstance(state, Mapping) else f"a {type(state).__name__}"


def merge_residuals(
    states: Sequence[Mapping[str, Any]], rank: int, world_size: int, what: str = "residuals"
) -> dict[str, Tensor]:
    """The residuals of `rank` in a job of `world_size`, from the saved states of a job of any size. They may be those
    of the states themselves."""
    old_size = int(states[0]["world_size"])
    if len(states) == 1 and old_size not in (1, world_size):
        raise ConfigError(
            f"load_state_dict: the state was saved by {old_size} ranks and is loaded by {world_size}; "
            "pass the states of all old ranks as a list"
        )
    if len(states) == 1 and old_size == world_size:
        if int(states[0]["rank"]) != rank:
            raise ConfigError(
                f"load_state_dict: the state of rank {states[0]['rank']} was passed to rank {rank}; load each rank's "
                "own state, or the list of all states on every rank"
            )
        return dict(states[0].get(what, {}))
    if len(states) != old_size or {int(state["rank"]) for state in states} != set(range(old_size)):
        raise ConfigError(f"load_state_dict: {len(states)} states were passed; pass those of all {old_size} old ranks")
    # Every rank gets every name, so that all ranks agree on which parameters have residuals.
    merged = {
        name: torch.zeros_like(value, dtype=torch.float32)
        for state in states
        for name, value in state.get(what, {}).items()
    }
    for state in states:
        if int(state["rank"]) % world_size == rank:
            for name, value in state.get(what, {}).items():
                merged[name] += value.float() * (world_size / old_size)
    return merged
