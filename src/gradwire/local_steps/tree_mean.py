"""Tree mean: small values that are averaged along a plan's trees, beside the weights of a round.

In: one flat tensor of float32 values on the CPU. Out: its mean over the ranks that took part in the step, uncompressed
at every level. It is a bucket of the same step of the trees as the weights, so it counts the same ranks: if one is lost
meanwhile, the step is repeated without it, and a rank that rejoins in the step adds nothing.
"""

from __future__ import annotations

from concurrent.futures import Future

import torch
from torch import Tensor

from gradwire.level import Level
from gradwire.sites.reducer import TreeReducer
from gradwire.tree.request import BucketRequest
from gradwire.types import Bucket


class TreeMean:
    """`begin` before the weights of a step are submitted, then `wait`. `index` is a bucket's that no weights have."""

    def __init__(self, reducer: TreeReducer, index: int) -> None:
        self._reducer, self._index = reducer, index
        self._residual = torch.zeros(0)
        self._values = torch.zeros(0)
        self._done: Future[None] | None = None

    def begin(self, values: Tensor, step: int) -> None:
        """`values` are overwritten by the mean; `step` is the session's."""
        if self._residual.numel() != values.numel():
            self._residual = torch.zeros(values.numel())  # stays empty: nothing is rounded
        done: Future[None] = Future()
        self._values, self._done = values, done

        def ended(error: BaseException | None) -> None:
            done.set_exception(error) if error is not None else done.set_result(None)

        bucket = Bucket(self._index, step, values.numel(), 4, (), is_last=False)
        self._reducer.submit(BucketRequest(bucket, Level(), values, self._residual, ended, own_level=True))

    def wait(self) -> Tensor:
        """The mean. Ends: the trees' step has a deadline."""
        if self._done is not None:
            self._done.result()
        return self._values
