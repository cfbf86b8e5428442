"""The group as a backend written in Python, with a substitute for the base class that this torch does not have."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from gradwire.backend import backend_base
from gradwire.errors import ConfigError
from tests.train.ranks import Ranks

# What torch's PyBackend looks up on a backend written in Python and gradwire implements.
LOOKED_UP = (
    "supports_splitting", "supports_coalescing", "supports_time_estimate", "set_timeout", "start_coalescing",
    "end_coalescing", "getBackendName", "options", "broadcast", "allreduce", "allreduce_sparse", "allreduce_coalesced",
    "reduce", "allgather", "all_gather_single", "allgather_coalesced", "all_gather_single_coalesced", "gather",
    "scatter", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_single_coalesced", "all_to_all_single",
    "alltoall", "monitored_barrier", "_set_sequence_number_for_group", "_get_sequence_number_for_group", "send",
    "recv", "recv_anysource", "barrier", "split", "_set_group_name", "eager_connect_single_device", "abort", "shutdown",
)  # fmt: skip


class Base:
    """In place of dist.BackendBase."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank_and_size = rank, size


def calls(rank: int, size: int) -> list[Any]:
    with mock.patch.object(dist, "BackendBase", Base, create=True):
        backend = backend_base.as_backend(dist.group.WORLD)
    missing = [name for name in LOOKED_UP if name not in vars(type(backend))]
    opts = dist.AllreduceOptions()
    backend.start_coalescing()
    first, second = torch.ones(3), torch.full((2,), float(rank))
    backend.allreduce([first], opts)
    backend.broadcast([second], dist.BroadcastOptions())
    backend.end_coalescing().wait()
    barrier = dist.BarrierOptions()
    barrier.timeout = timedelta(seconds=30)
    backend.monitored_barrier(barrier, True)
    options = backend.options
    options.group_name = "part"
    part = backend.split(None, [1, 2], options)
    third = torch.full((2,), float(rank))
    if part is not None:
        part.allreduce([third], opts).wait()
    return [missing, backend.rank_and_size, first.tolist(), second.tolist(), third.tolist(), options.backend,
            list(options.global_ranks_in_group)]  # fmt: skip


def test_a_backend_has_what_torch_looks_up_and_its_group_runs_the_calls(ranks: Ranks) -> None:
    for rank, answers in enumerate(ranks.on("gradwire").run(3, calls)):
        summed = [3.0, 3.0] if rank else [0.0, 0.0]
        assert answers == [[], (rank, 3), [3.0] * 3, [0.0] * 2, summed, "gradwire", [0, 1, 2]]


def test_the_gradwire_group_of_a_torch_group_is_that_of_its_backend() -> None:
    behind = object()

    class Holder:
        gradwire_group = behind

    store = dist.HashStore()
    group: Any = dist.ProcessGroup(store, 0, 1)
    assert backend_base.gradwire_group_of(group) is group
    with mock.patch.object(dist.ProcessGroup, "_get_backend", return_value=Holder()):
        assert backend_base.gradwire_group_of(group) is behind


def test_a_torch_without_the_base_class_is_an_error_that_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not backend_base.requested()
    monkeypatch.setenv(backend_base.VARIABLE, "1")
    with mock.patch.object(dist, "BackendBase", Base, create=True):
        assert backend_base.requested()
    if not hasattr(dist, "BackendBase"):
        with pytest.raises(ConfigError, match="GRADWIRE_BACKEND_BASE"):
            backend_base.requested()
