"""An installed gradwire changes nothing of torch's own groups: compared with a process that does not see it."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from typing import Any

_SCRIPT = """
import atexit, importlib.metadata, json, sys, threading, warnings

hidden, after = sys.argv[1] == "hidden", sys.argv[2:]
if hidden:
    find = importlib.metadata.entry_points
    importlib.metadata.entry_points = lambda **query: [one for one in find(**query) if one.name != "gradwire"]
import torch, torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import init_device_mesh

warnings.simplefilter("ignore")
loaded = sorted(name for name in sys.modules if name.split(".")[0] == "gradwire")
if after:
    dist.init_process_group("gradwire", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(torch.ones(3))
    dist.destroy_process_group()

def answer(ask):
    try:
        return str(ask())
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def group_facts(pg):
    asks = {
        "type": lambda: type(pg), "name": pg.name, "group": lambda: pg.group_name, "about": lambda: pg.group_desc,
        "devices": lambda: sorted(map(str, pg._device_types)), "backend": lambda: dist.get_backend(pg),
        "config": lambda: dist.get_backend_config(pg), "hooks": pg._has_hooks,
        "number": pg._get_sequence_number_for_group, "default device": lambda: c10d._get_pg_default_device(pg),
        "of cpu": lambda: type(pg._get_backend(torch.device("cpu"))), "store": lambda: type(pg.get_group_store()),
        "split": lambda: dist.split_group(pg, [[0]]),
        "barrier": lambda: dist.monitored_barrier(pg), "sum": lambda: dist.all_reduce(torch.ones(2), group=pg),
    }
    return {name: answer(ask) for name, ask in asks.items()}

facts = {}
for backend in ("gloo", "cpu:gloo", "cpu:gloo,cuda:gloo", None, "fake", "unheard-of"):
    try:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        facts[str(backend)] = group_facts(dist.group.WORLD)
        facts[f"{backend}, new group"] = group_facts(dist.new_group([0]))
        facts[f"{backend}, mesh"] = answer(lambda: init_device_mesh("cpu", (1, 1), mesh_dim_names=("a", "b")))
    except Exception as error:
        facts[str(backend)] = f"{type(error).__name__}: {error}".replace(", 'gradwire'", "")
    if dist.is_initialized():
        dist.destroy_process_group()
functions = {
    f"{module.__name__}.{name}": f"{value.__module__}.{value.__qualname__}"
    for module in (dist, c10d, torch.nn.parallel, torch.nn.parallel.DistributedDataParallel)
    for name, value in vars(module).items() if callable(value) and hasattr(value, "__qualname__")
}
facts["world"] = {
    "defaults": dist.Backend.default_device_backend_map, "plugins": sorted(dist.Backend._plugins),
    "backends": [name for name in dist.Backend.backend_list if name != "gradwire"],
    "available": [dist.is_backend_available(name) for name in ("gloo", "nccl", "mpi", "ucc", "cpu:gloo")],
    "threads": len(threading.enumerate()),
}
print(json.dumps({"facts": facts, "functions": functions, "loaded": loaded, "exit": atexit._ncallbacks()}))
"""


@cache
def seen(*arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_torchs_own_groups_behave_and_are_named_as_without_gradwire() -> None:
    with_it, without = seen("visible"), seen("hidden")
    for name, facts in without["facts"].items():
        assert with_it["facts"][name] == facts, name


def test_no_function_of_torch_is_replaced_and_nothing_runs_at_the_end() -> None:
    assert seen("visible")["functions"] == seen("hidden")["functions"]
    assert seen("visible")["exit"] == seen("hidden")["exit"]


def test_importing_torch_loads_the_entry_only() -> None:
    assert seen("visible")["loaded"] == ["gradwire", "gradwire.backend", "gradwire.backend.entry"]
    assert seen("hidden")["loaded"] == []


def test_torchs_own_groups_are_the_same_after_a_gradwire_group() -> None:
    used, without = seen("visible", "used"), seen("hidden")
    for name, facts in without["facts"].items():
        assert used["facts"][name] == facts, name
