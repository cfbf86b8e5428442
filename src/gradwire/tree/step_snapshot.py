"""Keep: what a step may be done again from, and what a member that missed its end is handed.

In: the step's parcels as they come. Each one's gradient and residual are copied before anything touches them; results
are copied when the step ends, and only then is anybody told that his bucket is done. Two copies of the gradient is what
it costs that members may be lost while the others go on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from gradwire.tree.request import BucketRequest


@dataclass(frozen=True, slots=True)
class _SavedBucket:
    parcel: BucketRequest
    gradient: Tensor
    residual: Tensor


class StepSnapshot:
    """One step under way, and the last one that ended."""

    def __init__(self) -> None:
        self._kept: list[_SavedBucket] = []
        self._results: dict[int, Tensor] = {}
        self._ended = -1

    def add(self, parcel: BucketRequest) -> None:
        self._kept.append(_SavedBucket(parcel, parcel.gradient.clone(), parcel.residual.clone()))

    @property
    def parcels(self) -> list[BucketRequest]:
        return [kept.parcel for kept in self._kept]

    @property
    def closed(self) -> bool:
        """Whether the step's last bucket is here."""
        return bool(self._kept) and self._kept[-1].parcel.bucket.is_last

    def rewind(self) -> list[BucketRequest]:
        """The step's parcels as they came."""
        for kept in self._kept:
            kept.parcel.gradient.copy_(kept.gradient)
            kept.parcel.residual.copy_(kept.residual)
        return self.parcels

    def blank(self) -> None:
        """This step goes on without what this member made of it, and nothing of old waits here any more."""
        self._kept = [
            _SavedBucket(replace(kept.parcel, weight=0), kept.gradient.zero_(), kept.residual.zero_())
            for kept in self._kept
        ]

    def end(self, step: int) -> list[BucketRequest]:
        """The step is done: keep its results, forget the rest; the parcels whose owners are to be told."""
        parcels = self.parcels
        for parcel in parcels:
            index, result = parcel.bucket.index, self._results.get(parcel.bucket.index)
            if result is not None and result.numel() == parcel.gradient.numel():
                result.copy_(parcel.gradient)
            else:
                self._results[index] = parcel.gradient.clone()
        self._ended = step
        self._kept = []
        return parcels

    def results(self, step: int) -> dict[int, Tensor]:
        """The last step's results by bucket; nothing for another step."""
        return self._results if step == self._ended else {}
