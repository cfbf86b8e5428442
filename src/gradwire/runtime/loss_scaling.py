"""Loss scaling: residuals follow the scale of the gradient, and forget the steps that a scaler skips.

With a loss scaler (torch.amp.GradScaler) every gradient is multiplied by a scale, and so is what waits of it:

    1. When the scale has changed, everything that waits is multiplied by new / old, before a step's first exchange.
    2. When a gradient overflows on any rank, all ranks restore a mean that is not finite, and every rank's scaler skips
       the optimizer's step. What this step sent was not applied, and what it left waiting belongs to a gradient that is
       dropped: when the step has ended, all residuals are put back as they were before it, on every rank alike.

In: the scaler, buckets before their exchanges, restored buckets. For 2 the residuals are copied before every step, in
memory that is kept; so this is done only where a scaler is known: the one passed to `attach`, or the only one that the
training loop can reach, on all ranks. Without a scaler only a step that sends everything that waited (`off` after
compressed steps) is watched, which takes no copy: where its mean is not finite, what waited goes on waiting.
"""

from __future__ import annotations

import inspect
import math
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, ModuleType
from typing import Protocol

import torch
from torch import Tensor

from gradwire.compress.codec_cache import CodecCache, Factors
from gradwire.compress.error_feedback import ErrorFeedback, SavedResiduals
from gradwire.errors import ConfigError
from gradwire.types import Bucket, ParameterSlice


class Scaler(Protocol):
    """What is asked of torch's GradScaler and of classes like it."""

    def get_scale(self) -> float: ...

    def is_enabled(self) -> bool: ...


class LossScaling:
    """The unit of one session's residuals, and its step under way."""

    def __init__(self, feedback: ErrorFeedback, codecs: CodecCache, resend: Callable[[], None] = lambda: None) -> None:
        """`resend` is called when more waits than the last step left."""
        self._feedback = feedback
        self._codecs = codecs
        self._resend = resend
        self._scaler: Scaler | None = None
        self._looked = False
        self._active = False
        self._step = -1
        self._saved: list[SavedResiduals] = []
        self._spare: dict[int, SavedResiduals] = {}
        self._factors: Factors = {}
        self._overflowed = self._undone = False
        # Where a rank holds a shard of the model: whether any shard overflowed. A collective: asked at every step.
        self.agree: Callable[[bool], bool] | None = None
        # Whether all ranks found a scaler, given whether this one did. A collective: asked once, at the same step.
        self.all_found: Callable[[bool], bool] = lambda found: found
        # The scale of what waits; None where it is unknown: the next step's is assumed.
        self.scale: float | None = 1.0

    def follow(self, scaler: Scaler) -> None:
        """Take this scaler, and look for no other. Every rank does so at the same point."""
        check_scaler(scaler)
        if self._step >= 0:
            self.scale = None
        self._scaler = scaler

    def begin(self, step: int) -> None:
        """Called before any exchange of a bucket reads a residual; acts at the step's first one."""
        if step == self._step:
            return
        self._step, self._saved, self._overflowed = step, [], False
        scaler = self._followed()
        self._active = scaler is not None
        if self._active:
            self._factors = self._codecs.factors()
        self._rescale(scaler.get_scale() if scaler is not None else 1.0)

    def save(self, bucket: Bucket) -> None:
        """Begin the step; copy what waits for the bucket, where a scaler may skip it."""
        self.begin(bucket.step)
        if self._active:
            saved = self._feedback.saved(bucket, self._spare.get(bucket.index))
            self._spare[bucket.index] = saved
            self._saved.append(saved)

    def flushed(self, saved: SavedResiduals) -> None:
        """All that waited for a bucket goes with this step."""
        self._saved.append(saved)

    def settle(self, restored: Iterable[Tensor], over: bool) -> None:
        """Look at restored buckets, and when the step is over, undo it where one of them is not finite. All ranks
        restore the same bytes, so all of them do the same."""
        agree = self.agree if self.agree is not None and self._followed() is not None else None
        if (self._saved or agree) and not self._overflowed:
            self._overflowed = not all(map(finite, restored))
        if not over:
            return
        if agree is not None:
            self._overflowed = agree(self._overflowed)
        saved, self._saved = self._saved, []
        self._undone, self._overflowed = self._overflowed, False
        if self._undone:
            for one in saved:
                self._feedback.restore(one)
            self._codecs.load_factors(self._factors)
            self._resend()

    def prepare(self, step: int, done: bool) -> None:
        """Called before a step's first bucket. A rank that is `done` before the others (`model.join()`) goes through
        their steps without learning of new scales, so what waits there in the scale of its own last step is not sent:
        it waits until this rank takes part again."""
        if done and self._active:
            self._feedback.set_aside()
        elif not done and self._feedback.aside:
            self.begin(step)
            self._feedback.take_up()
            self._resend()

    def pending(self, bucket: Bucket) -> bool:
        """Whether anything may wait for this bucket."""
        return self._feedback.pending(bucket)

    def return_mean(self, bucket: Bucket, part: ParameterSlice, mean: Tensor, kept: Tensor | None) -> None:
        """No rank applies this restored part of the step that ended: it goes on waiting, on every rank alike, but for
        the gradient from earlier steps that this rank `kept` and sent again."""
        if self._undone:
            return
        mean = mean.float() if kept is None else mean.float() - kept.float()
        if mean.any() and finite(mean):
            residual = self._feedback.worker(bucket, mean.device)
            residual[part.offset : part.offset + part.numel] += mean.to(residual.device)
            self._resend()

    def rescaled(self, factor: float) -> None:
        """The user multiplied what waits."""
        self.scale = self.scale * factor if self._active and self.scale is not None else None

    def _followed(self) -> Scaler | None:
        """The scaler that was passed, or that every rank found; while it is enabled. Ranks that followed one and ranks
        that did not would undo different steps."""
        if not self._looked:
            self._looked, found = True, self._scaler or find_scaler()
            self._scaler = found if self.all_found(found is not None) else None
            if found is not None and self._scaler is None:
                warnings.warn(
                    "gradwire: this rank has a loss scaler and another has none, or several; residuals follow none. "
                    "Pass it on every rank: attach(model, scaler=scaler)",
                    stacklevel=2,
                )
        return self._scaler if self._scaler is not None and self._scaler.is_enabled() else None

    def _rescale(self, now: float) -> None:
        if not (0.0 < now < math.inf):  # a scale that fell to nothing: there is no unit to change to
            return
        if self.scale is not None and now != self.scale:
            self._feedback.rescale(now / self.scale)
        self.scale = now


def finite(tensor: Tensor) -> bool:
    """Whether every value is a number; one pass that allocates nothing."""
    values = tensor._values() if tensor.is_sparse else tensor
    if values.numel() == 0:
        return True
    least, most = torch.aminmax(values)
    return bool(least.isfinite() & most.isfinite())


def check_scaler(scaler: object) -> None:
    """ConfigError for anything that does not say its scale."""
    if not all(callable(getattr(scaler, name, None)) for name in ("get_scale", "is_enabled")):
        raise ConfigError(f"scaler: {type(scaler).__name__} is no loss scaler; pass the torch.amp.GradScaler in use")


def find_scaler() -> Scaler | None:
    """The only enabled GradScaler that the training loop can reach; None, with a warning, where there are several.

    Looked for in the variables of the functions that are running in the main thread, which is in a backward pass, and
    in the attributes of what those variables hold: `scaler`, `self.scaler`, `accelerator.scaler`. (`gc.get_objects()`
    would find all, but is not safe beside other threads: it takes references to tuples that they are building.)
    """
    found = {id(scaler): scaler for scaler in _reachable() if scaler.is_enabled()}
    if len(found) > 1:
        warnings.warn(
            f"gradwire: this training loop reaches {len(found)} loss scalers; pass the one of this model, "
            "attach(model, scaler=scaler), so that residuals follow its scale and the steps it skips",
            stacklevel=2,
        )
    return next(iter(found.values())) if len(found) == 1 else None


def _reachable() -> Iterator[torch.amp.GradScaler]:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        for held in [*_locals(frame), *frame.f_globals.values()]:
            yield from (one for one in (held, *_attributes(held)) if issubclass(type(one), torch.amp.GradScaler))
        frame = frame.f_back


def _locals(frame: FrameType) -> list[object]:
    """The values of a frame's variables. Up to Python 3.12 a function's frame keeps the dictionary that it made for
    this, and with it a model that the function deletes later: it is emptied. (In a module or class body the dictionary
    is the variables themselves.)"""
    variables = frame.f_locals
    values = list(variables.values())
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and type(variables) is dict:
        variables.clear()
    return values


def _attributes(held: object) -> list[object]:
    """What an instance holds, without running any of its code; modules and classes hold too much that is others'."""
    if issubclass(type(held), (type, ModuleType)):
        return []
    try:
        attributes = object.__getattribute__(held, "__dict__")
    except AttributeError:
        return []
    return list(attributes.values()) if type(attributes) is dict else []
