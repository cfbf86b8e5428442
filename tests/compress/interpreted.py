"""Triton's kernels, interpreted on tensors of host memory, as tests/conftest.py tells triton before its import."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="the extra gradwire[gpu] is not installed")

from gradwire.compress.kernels.triton import launch, launch_sparse

assert launch.INTERPRETED, "triton was imported without TRITON_INTERPRET=1"

__all__ = ["launch", "launch_sparse"]
