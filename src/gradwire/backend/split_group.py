"""Split group: the creation options of a new group with some ranks of an existing one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import PrefixStore, _DistributedBackendOptions

from gradwire.backend.cpu_backend import CpuBackend
from gradwire.errors import ConfigError


def split_options(parent: CpuBackend, ranks: Sequence[int], timeout: timedelta, name: str | None) -> Any:
    """The options of the group whose ranks in `parent` are `ranks`; None where this rank is not among them."""
    if not ranks or len(set(ranks)) != len(ranks) or not 0 <= ranks[0] <= ranks[-1] < parent.size():
        raise ConfigError(f"split_group: ranks {list(ranks)} must be different ranks of this group of {parent.size()}")
    if parent.rank() not in ranks:
        return None
    options = _DistributedBackendOptions()
    options.group_id = name or f"{parent.group_name}:split:{list(ranks)}"
    options.group_rank, options.group_size = list(ranks).index(parent.rank()), len(ranks)
    options.global_ranks_in_group = [parent.global_ranks[rank] for rank in ranks]
    options.timeout = timeout
    # As in torch's own groups: the group's name, then the device.
    options.store = PrefixStore("cpu/", PrefixStore(f"{options.group_id}/", parent.get_group_store()))
    return options
