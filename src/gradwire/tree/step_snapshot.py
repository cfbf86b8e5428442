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
    request: BucketRequest
    gradient: Tensor
    residual: Tensor


class StepSnapshot:
    """One step under way, and the last one that ended."""

    def __init__(self) -> None:
        self._saved: list[_SavedBucket] = []
        self._results: dict[int, Tensor] = {}
        self._results_arrived = -1

    def add(self, request: BucketRequest) -> None:
        self._saved.append(_SavedBucket(request, request.gradient.clone(), request.residual.clone()))

    @property
    def requests(self) -> list[BucketRequest]:
        return [saved.request for saved in self._saved]

    @property
    def closed(self) -> bool:
        """Whether the step's last bucket is here."""
        return bool(self._saved) and self._saved[-1].request.bucket.is_last

    def rewind(self) -> list[BucketRequest]:
        """The step's parcels as they came."""
        for saved in self._saved:
            saved.request.gradient.copy_(saved.gradient)
            saved.request.residual.copy_(saved.residual)
        return self.requests

    def blank(self) -> None:
        """This step goes on without what this member made of it, and nothing of old waits here any more."""
        self._saved = [
            _SavedBucket(replace(saved.request, weight=0), saved.gradient.zero_(), saved.residual.zero_())
            for saved in self._saved
        ]

    def end(self, step: int) -> list[BucketRequest]:
        """The step is done: keep its results, forget the rest; the parcels whose owners are to be told."""
        requests = self.requests
        for request in requests:
            index, result = request.bucket.index, self._results.get(request.bucket.index)
            if result is not None and result.numel() == request.gradient.numel():
                result.copy_(request.gradient)
            else:
                self._results[index] = request.gradient.clone()
        self._results_arrived = step
        self._saved = []
        return requests

    def results(self, step: int) -> dict[int, Tensor]:
        """The last step's results by bucket; nothing for another step."""
        return self._results if step == self._results_arrived else {}
