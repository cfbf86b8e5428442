"""Step snapshot: copies from which a step can be repeated, and its results for a member that missed the end.

In: the step's requests. Gradient and residual of each are copied before they change. Results are copied when the step
ends; only then are the requests reported as done. The cost of elastic plans is therefore two copies of the gradient.
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
    """The current step and the results of the last one."""

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
        """Whether the step's last bucket was submitted."""
        return bool(self._saved) and self._saved[-1].request.bucket.is_last

    def rewind(self) -> list[BucketRequest]:
        """Restore all gradients and residuals of the step; returns its requests."""
        for saved in self._saved:
            saved.request.gradient.copy_(saved.gradient)
            saved.request.residual.copy_(saved.residual)
        return self.requests

    def discard(self) -> None:
        """Discard this member's contribution to the step and all its residuals: both belong to a stale replica."""
        self._saved = [
            _SavedBucket(replace(saved.request, weight=0), saved.gradient.zero_(), saved.residual.zero_())
            for saved in self._saved
        ]

    def end(self, step: int) -> list[BucketRequest]:
        """The step is done: keep its results and drop the rest; returns the requests to report as done."""
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
        """The last step's results by bucket; empty for any other step."""
        return self._results if step == self._results_arrived else {}
