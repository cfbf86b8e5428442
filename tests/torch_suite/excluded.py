"""Torch's own tests that are not run against the gradwire backend, each with its reason.

Tests that torch itself skips here (no GPU, its own open issues, a larger world) are not listed: they are skipped with
torch's words.
"""

from __future__ import annotations

EXCLUDED: dict[str, str] = {
    "test_SyncBatchNorm_process_group": "needs torchvision, which is no dependency of ours",
}
