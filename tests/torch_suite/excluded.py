"""Torch's own tests that are not run against the gradwire backend, each with its reason.

Tests that torch itself skips here (no GPU, its own open issues, a larger world) are not listed: they are skipped with
torch's words.
"""

from __future__ import annotations

_GPU = "moves tensors to a GPU without asking whether there is one"
_NCCL = "written for NCCL; here its ranks part before the last barrier, which then times out"

EXCLUDED: dict[str, str] = {
    "test_SyncBatchNorm_process_group": "needs torchvision, which is no dependency of ours",
    "test_all_to_all_cuda": _GPU,
    "test_all_to_all_cuda_complex": _GPU,
    "test_all_to_all_full_group_cuda": _GPU,
    "test_batch_isend_irecv_mixed_backend_err": _NCCL,
    "test_batch_isend_irecv_op_err": _NCCL,
    "test_get_backend": "asks whether the backend's name is the one the tests were started for (gloo)",
}
