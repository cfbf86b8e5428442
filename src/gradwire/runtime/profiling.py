"""Trace: named ranges, so that gradwire shows up in torch.profiler's traces. Free where nobody profiles.

Ranges in gradwire's own threads show with `experimental_config=_ExperimentalConfig(profile_all_threads=True)`; those of
the training thread (`gradwire::hook`, `gradwire::settle`) always do.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Final

from torch.autograd import profiler

_NOTHING: Final[AbstractContextManager[None]] = nullcontext()


def span(name: str) -> AbstractContextManager[object]:
    """A range called gradwire::NAME while a profiler runs, nothing otherwise: making one costs some microseconds."""
    if not profiler._is_profiler_enabled:
        return _NOTHING
    return profiler.record_function(f"gradwire::{name}")
