"""The names under which torch calls a process group: those of 2.5 and those of 2.13, which renamed some."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from gradwire.backend.process_group import GradwireGroup

# What distributed_c10d.py, DDP, FSDP2 and functional collectives call and a Python group must define itself.
SINCE_2_5 = (
    "allreduce", "allreduce_coalesced", "reduce", "reduce_scatter", "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced", "broadcast", "allgather", "_allgather_base", "allgather_coalesced",
    "allgather_into_tensor_coalesced", "gather", "scatter", "alltoall", "alltoall_base", "barrier", "monitored_barrier",
    "send", "recv", "recv_anysource", "_start_coalescing", "_end_coalescing", "name", "getBackendName",
    "_set_group_name", "group_name", "_set_group_desc", "group_desc", "_set_default_timeout",
)  # fmt: skip
SINCE_2_13 = (
    "all_gather_single", "all_gather_single_coalesced", "reduce_scatter_single", "reduce_scatter_single_coalesced",
    "all_to_all_single", "shutdown", "abort", "set_timeout", "split_group", "get_group_store", "_get_backend",
    "_device_types", "_get_sequence_number_for_group", "_set_sequence_number_for_group",
)  # fmt: skip
OPTIONS = ("AllgatherOptions", "AllreduceCoalescedOptions", "AllreduceOptions", "BarrierOptions", "BroadcastOptions",
           "ReduceScatterOptions")  # fmt: skip


@pytest.mark.parametrize("name", SINCE_2_5 + SINCE_2_13)
def test_the_group_has_old_and_new_names(name: str) -> None:
    assert name in _ours(), "torch's own method, which does not work for a group in Python"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("_allgather_base", "all_gather_single"),
        ("allgather_into_tensor_coalesced", "all_gather_single_coalesced"),
        ("_reduce_scatter_base", "reduce_scatter_single"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced"),
        ("alltoall_base", "all_to_all_single"),
    ],
)
def test_both_names_are_one_method(old: str, new: str) -> None:
    assert vars(GradwireGroup)[old] is vars(GradwireGroup)[new]


def test_the_group_covers_what_this_torch_calls() -> None:
    """A collective that a later torch adds to its groups shows here first."""
    elsewhere = {"allreduce_sparse"}  # reached through allreduce
    theirs = {
        name
        for name in dir(dist.ProcessGroup)
        if name.startswith(("all", "broadcast", "gather", "reduce", "scatter", "send", "recv", "barrier"))
    }
    assert theirs - elsewhere <= _ours()


def _ours() -> set[str]:
    """What gradwire's classes define themselves."""
    ours = GradwireGroup.__mro__[: GradwireGroup.__mro__.index(dist.ProcessGroup)]
    return {name for kind in ours for name in vars(kind)}
