"""Loss scaling: keeps residuals in the scale of the gradient, and undoes the steps that a loss scaler skips.

With a loss scaler (torch.amp.GradScaler) every gradient is multiplied by a scale, and so are the residuals:

    1. When the scale has changed, all residuals are multiplied by new / old, before a step's first exchange.
    2. When a gradient overflows on any rank, all ranks restore a mean that is not finite, and every rank's scaler skips
       the optimizer's step. What this step sent was not applied, and the residuals that it left belong to a gradient
       that is dropped. So when the step has ended, every rank restores all residuals as they were before it.

In: the scaler, buckets before their exchanges, restored buckets. For 2 the residuals are copied before every step, into
memory that is kept; so this is done only where a scaler is known: the one passed to `attach`, or the only one that the
training loop can reach, on all ranks. Without a scaler only a step that sends whole residuals (`off` after compressed
steps) is checked, which needs no copy: if its mean is not finite, the residuals are kept.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import Tensor

from gradwire.compress.codec_cache import CodecCache, Factors
from gradwire.compress.error_feedback import ErrorFeedback, SavedResiduals
from gradwire.errors import ConfigError
from gradwire.types import Bucket, ParameterSlice


class Scaler(Protocol):
    """What gradwire needs of torch's GradScaler and of similar classes."""

    def get_scale(self) -> float: ...

    def is_enabled(self) -> bool: ...


class LossScaling:
    """The scale of one session's residuals, and the copies of the step in progress."""

    def __init__(self, feedback: ErrorFeedback, codecs: CodecCache, resend: Callable[[], None] = lambda: None) -> None:
        """`resend` is called when residuals hold more than the last step left."""
        self._feedback = feedback
        self._codecs = codecs
        self._resend = resend
        self._scaler: Scaler | None = None
        # What a search of the training loop found, before the first step (integrations/scaler_search.py).
        self.found: Scaler | None = None
        self._searched = False
        self._active = False
        self._step = -1
        self._saved: list[SavedResiduals] = []
        self._copies: dict[int, SavedResiduals] = {}
        self._factors: Factors = {}
        self._overflowed = self._undone = False
        # While weights are synchronised (local steps): they have no loss scale, and no step of theirs is skipped.
        self.paused = False
        # Where a rank holds a shard of the model: whether any shard overflowed. A collective, called at every step.
        self.any_shard: Callable[[bool], bool] | None = None
        # Whether all ranks found a scaler, given whether this one did. A collective, called once, at the same step.
        self.all_found: Callable[[bool], bool] = lambda found: found
        # The scale of the residuals; None where it is unknown: then it is taken to be the next step's.
        self.scale: float | None = 1.0

    def follow(self, scaler: Scaler) -> None:
        """Use this scaler and search for no other. Every rank calls this at the same point."""
        check_scaler(scaler)
        if self._step >= 0:
            self.scale = None
        self._scaler = scaler

    def begin(self, step: int) -> None:
        """Called before an exchange reads a residual; acts at the first call of a step."""
        if step == self._step:
            return
        self._step, self._saved, self._overflowed = step, [], False
        scaler = self._active_scaler()
        self._active = scaler is not None
        if self._active:
            self._factors = self._codecs.factors()
        self._rescale(scaler.get_scale() if scaler is not None else 1.0)

    def save(self, bucket: Bucket) -> None:
        """Begin the step; copy the bucket's residuals if a scaler may skip it."""
        self.begin(bucket.step)
        if self._active:
            saved = self._feedback.saved(bucket, self._copies.get(bucket.index))
            self._copies[bucket.index] = saved
            self._saved.append(saved)

    def flushed(self, saved: SavedResiduals) -> None:
        """The whole residual of a bucket is sent with this step; `saved` is what it was."""
        self._saved.append(saved)

    @property
    def checks(self) -> bool:
        """Whether `settle` will look at the buckets of the step in progress; a later bucket's `flushed` can still
        change that."""
        return bool(self._saved) or self.any_shard is not None

    def settle(self, buckets_finite: Iterable[bool], step_ended: bool) -> None:
        """`buckets_finite`: whether each restored bucket is; read only where that matters. At the end of the step, undo
        it if one is not. All ranks restore the same bytes, so all of them do the same."""
        any_shard = self.any_shard if self.any_shard is not None and self._active_scaler() is not None else None
        if (self._saved or any_shard) and not self._overflowed:
            self._overflowed = not all(buckets_finite)
        if not step_ended:
            return
        if any_shard is not None:
            self._overflowed = any_shard(self._overflowed)
        saved, self._saved = self._saved, []
        self._undone, self._overflowed = self._overflowed, False
        if self._undone:
            for residuals in saved:
                self._feedback.restore(residuals)
            self._codecs.load_factors(self._factors)
            self._resend()

    def prepare(self, step: int, joined: bool) -> None:
        """Called before a step's first bucket. A rank that ran out of data before the others (`joined`: it is in
        `model.join()`) takes part in their steps, but its scaler does not get
        their new scales. Its residuals, in the scale of its own
        last step, are not sent: they are set aside until this rank trains again."""
        if joined and self._active:
            self._feedback.set_aside()
        elif not joined and self._feedback.aside:
            self.begin(step)
            self._feedback.take_up()
            self._resend()

    def pending(self, bucket: Bucket) -> bool:
        """Whether this bucket may have residuals."""
        return self._feedback.pending(bucket)

    def return_mean(self, bucket: Bucket, part: ParameterSlice, mean: Tensor, kept: Tensor | None) -> None:
        """Add a restored part that no rank applies to the residual, on every rank alike; without the gradient of
        earlier steps that this rank `kept` and sent again."""
        if self._undone:
            return
        mean = mean.float() if kept is None else mean.float() - kept.float()
        if mean.any() and finite(mean):
            self._feedback.add(bucket, part.offset, mean)
            self._resend()

    def rescaled(self, factor: float) -> None:
        """The user multiplied the residuals."""
        self.scale = self.scale * factor if self._active and self.scale is not None else None

    def _active_scaler(self) -> Scaler | None:
        """The scaler that was passed or that every rank found, while it is enabled. If only some ranks used one, ranks
        would undo different steps."""
        if not self._searched:
            self._searched, found = True, self._scaler or self.found
            self._scaler = found if self.all_found(found is not None) else None
            if found is not None and self._scaler is None:
                warnings.warn(
                    "gradwire: this rank has a loss scaler and another rank has none, or several, so no rank uses one. "
                    "Pass it on every rank: attach(model, scaler=scaler)",
                    stacklevel=2,
                )
        used = self._scaler is not None and self._scaler.is_enabled() and not self.paused
        return self._scaler if used else None

    def _rescale(self, now: float) -> None:
        if not (0.0 < now < math.inf):  # the scale fell to zero: residuals cannot be converted
            return
        if self.scale is not None and now != self.scale:
            self._feedback.rescale(now / self.scale)
        self.scale = now


def finite(tensor: Tensor) -> bool:
    """Whether every value is finite; one pass, without allocation."""
    values = tensor._values() if tensor.is_sparse else tensor
    if values.numel() == 0:
        return True
    least, most = torch.aminmax(values)
    return bool(least.isfinite() & most.isfinite())


def check_scaler(scaler: object) -> None:
    """ConfigError for an object without the methods of a loss scaler."""
    if not all(callable(getattr(scaler, name, None)) for name in ("get_scale", "is_enabled")):
        raise ConfigError(f"scaler: {type(scaler).__name__} is no loss scaler; pass the torch.amp.GradScaler you use")
