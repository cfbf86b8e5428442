"""Feedback: what was not sent waits here, keyed by parameter, until it goes.

Two memories per bucket. The worker's residual is this rank's own unsent gradient. The owner's residual belongs to the
shard whose sum this rank re-encodes; it is in units of the mean, so folding it into the worker's residual multiplies it
by the world size. Residuals are flat per bucket for speed and named per parameter for life: a rebuilt bucket takes its
values over by name, and so does a checkpoint.

A change of world size: the mean that is still owed must not change. The residuals of the old ranks r, r + new,
r + 2 new, ... are summed into new rank r and scaled by new / old.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire.errors import ConfigError
from gradwire.flow import Bucket

Place = tuple[int, int]  # (start, numel) of a shard within its bucket


class Feedback:
    """The residuals of one rank."""

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank = rank
        self._world_size = world_size
        self._layouts: dict[int, Bucket] = {}
        self._flat: dict[int, Tensor] = {}
        self._named: dict[str, Tensor] = {}
        self._owned: dict[int, dict[Place, Tensor]] = {}
        self._velocity: dict[int, Tensor] = {}
        self._step = -1
        self._served: set[int] = set()  # buckets of the current step; their exchanges may be under way in other threads

    def worker(self, bucket: Bucket, device: torch.device) -> Tensor:
        """This rank's flat residual for the bucket, carried over by name when the layout changed."""
        if bucket.step != self._step:
            self._step = bucket.step
            self._served.clear()
        known = self._layouts.get(bucket.index)
        if known is None or known.slices != bucket.slices:
            self._relayout(bucket, device)
        self._served.add(bucket.index)
        return self._flat[bucket.index]

    def owner(self, bucket: Bucket, place: Place, device: torch.device) -> Tensor:
        """The residual of a shard this rank owns; the caller folds first when it cuts the bucket differently."""
        owned = self._owned.setdefault(bucket.index, {})
        if place not in owned:
            owned[place] = torch.zeros(place[1], device=device)
        return owned[place]

    def velocity(self, bucket: Bucket, gradient: Tensor, momentum: float) -> Tensor:
        """DGC's momentum correction: velocity = momentum x velocity + gradient, kept before the residual. The gradient
        becomes the velocity; what is not finite goes as it is, and leaves no trace."""
        known = self._velocity.get(bucket.index)
        if known is None or known.numel() != gradient.numel():
            known = torch.zeros_like(gradient)
            self._velocity[bucket.index] = known
        finite = gradient.isfinite()
        known.mul_(momentum).add_(torch.where(finite, gradient, 0.0))
        gradient.copy_(torch.where(finite, known, gradient))
        return known

    def fold(self, index: int) -> None:
        """Move what this rank owes as an owner into what it owes as a worker."""
        for (start, numel), left in self._owned.pop(index, {}).items():
            self._flat[index][start : start + numel].add_(left, alpha=self._world_size)

    def pending(self, bucket: Bucket) -> bool:
        """Whether anything may wait for this bucket, be it from another layout or a checkpoint."""
        return bucket.index in self._flat or any(part.name in self._named for part in bucket.slices)

    def flush(self, bucket: Bucket, gradient: Tensor) -> None:
        """Add everything that waits to the gradient and forget it: the step is sent whole."""
        residual = self.worker(bucket, gradient.device)
        self.fold(bucket.index)
        gradient.add_(residual)
        for part in bucket.slices:
            del self._named[part.name]
        del self._flat[bucket.index], self._layouts[bucket.index]
        self._velocity.pop(bucket.index, None)

    def energy(self) -> float:
        """Squared norm of everything that waits on this rank as a worker."""
        return float(sum(torch.dot(flat, flat) for flat in self._flat.values()))

    def rescale(self, factor: float) -> None:
        """Multiply everything that waits, for callers whose gradient changed its unit (a loss scaler's new scale)."""
        for flat in (*self._flat.values(), *self._velocity.values()):
            flat.mul_(factor)
        laid_out = {part.name for bucket in self._layouts.values() for part in bucket.slices}
        for value in (value for name, value in self._named.items() if name not in laid_out):
            value.mul_(factor)  # loaded, and its bucket has not come yet
        for left in (left for owned in self._owned.values() for left in owned.values()):
            left.mul_(factor)

    def state_dict(self) -> dict[str, Any]:
        """This rank's residuals by parameter name; owners' parts are folded in."""
        for index in list(self._owned):
            self.fold(index)
        residuals = {name: value.clone() for name, value in self._named.items()}
        return {"rank": self._rank, "world_size": self._world_size, "residuals": residuals}

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Take over one rank's state, or those of all ranks of a job of another size."""
        states = [state] if isinstance(state, Mapping) else list(state)
        merged = merge_residuals(states, self._rank, self._world_size)
        self._layouts.clear()
        self._flat.clear()
        self._owned.clear()
        self._velocity.clear()
        self._served.clear()
        self._named = merged

    def _relayout(self, bucket: Bucket, device: torch.device) -> None:
        # Owners' places lose their meaning when any bucket changes, but for those already cut anew in this step, which
        # share no parameter with what is to come and whose exchanges are using them.
        for index in [i for i in list(self._owned) if i == bucket.index or i not in self._served]:
            self.fold(index)
        flat = torch.zeros(bucket.numel, device=device)
        for part in bucket.slices:
            view = flat[part.offset : part.offset + part.numel]
            known = self._named.get(part.name)
            if known is not None:
                if known.numel() != part.numel:
                    raise ConfigError(
                        f"residual of {part.name!r} has {known.numel()} elements, the parameter {part.numel}: "
                        "the checkpoint is of another model"
                    )
                view.copy_(known)
            self._named[part.name] = view
        self._layouts[bucket.index] = bucket
        self._flat[bucket.index] = flat
        self._velocity.pop(bucket.index, None)  # momentum restarts when buckets are rebuilt, once per run


def merge_residuals(states: Sequence[Mapping[str, Any]], rank: int, world_size: int) -> dict[str, Tensor]:
    """The residuals of `rank` in a job of `world_size`, from the saved states of a job of any size."""
    old_size = int(states[0]["world_size"])
    if len(states) == 1 and old_size not in (1, world_size):
        raise ConfigError(
            f"the state was saved by {old_size} ranks and is loaded by {world_size}: "
            "pass the states of all old ranks as a list to load_state_dict"
        )
    if len(states) == 1 and old_size == world_size:
        if int(states[0]["rank"]) != rank:
            raise ConfigError(
                f"load_state_dict: the state is rank {states[0]['rank']}'s and is loaded by rank {rank}; every rank "
                "saves its own and loads its own, or all ranks load a list of all"
            )
        return {name: value.clone() for name, value in states[0]["residuals"].items()}
    if len(states) != old_size or {int(state["rank"]) for state in states} != set(range(old_size)):
        raise ConfigError(f"load_state_dict needs the states of all {old_size} old ranks, got {len(states)}")
    merged: dict[str, Tensor] = {}
    for state in states:
        if int(state["rank"]) % world_size == rank:
            for name, value in state["residuals"].items():
                scaled = value * (world_size / old_size)
                merged[name] = merged[name] + scaled if name in merged else scaled
    return merged
