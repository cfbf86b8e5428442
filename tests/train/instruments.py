"""What several training jobs measure or break: an encoder that fails, and the buckets in flight at every settle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.nn import functional as F

import gradwire
from gradwire.compress import dense
from gradwire.runtime.session import Session


def train_with_broken_encoder(
    model: Callable[[Tensor], Tensor], handle: gradwire.Handle, batches: Iterator[tuple[Tensor, Tensor]], fails_at: int
) -> str:
    """Train until the encoder of this rank fails at step `fails_at` (never, where that is negative) or another rank's
    failure arrives: the error that reached the training loop, and the step. Closes the handle."""
    original, step = dense.DenseCodec.encode, 0

    def broken(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise MemoryError("the encoder failed")

    try:
        for step, (inputs, labels) in enumerate(batches):
            if step == fails_at:
                dense.DenseCodec.encode = broken  # type: ignore[method-assign]
            F.cross_entropy(model(inputs), labels).backward()
    except (MemoryError, gradwire.LinkError) as error:
        return f"{type(error).__name__} at step {step}"
    finally:
        dense.DenseCodec.encode = original  # type: ignore[method-assign]
        handle.close()
    return "no error"


@contextmanager
def recorded_settles() -> Iterator[list[int]]:
    """How many buckets were in flight whenever a session settled."""
    in_flight: list[int] = []
    original = Session.settle

    def settle(self: Session) -> None:
        in_flight.append(len(self._in_flight))
        original(self)

    Session.settle = settle  # type: ignore[method-assign]
    try:
        yield in_flight
    finally:
        Session.settle = original  # type: ignore[method-assign]
