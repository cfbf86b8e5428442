"""Profiling: named ranges for torch.profiler's traces. They cost nothing while no profiler runs.

Ranges of the training thread (`gradwire::hook`, `gradwire::settle`) always appear; those of gradwire's own threads with
`experimental_config=_ExperimentalConfig(profile_all_threads=True)`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Final

from torch.autograd import profiler

_NOTHING: Final[AbstractContextManager[None]] = nullcontext()


def span(name: str) -> AbstractContextManager[object]:
    """A range called gradwire::NAME while a profiler runs, nothing otherwise: a range costs some microseconds."""
    if not profiler._is_profiler_enabled:
        return _NOTHING
    return profiler.record_function(f"gradwire::{name}")
