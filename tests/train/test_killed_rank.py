"""A rank is killed in a real job that cannot continue without it: the others' errors, and what the views show."""

from __future__ import annotations

import multiprocessing
import os
from datetime import timedelta
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed import TCPStore
from torch.nn.parallel import DistributedDataParallel

from gradwire.errors import LinkError
from tests.observe.recordings import fold
from tests.observe.test_terminal import shown
from tests.train import jobs, sharded

WORLD, DEAD, LAST = 3, 1, 6


def train(rank: int, port: int, folder: str, config: dict[str, Any], last: int = LAST) -> None:
    """Rank 1 kills itself before step `last`; the others write their error to a file."""
    import gradwire

    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "GRADWIRE_IFNAME": "lo", "GRADWIRE_HOST": f"machine{rank}"}
    store = TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60))
    model = DistributedDataParallel(jobs.small_net(), bucket_cap_mb=0.02)
    handle = gradwire.attach(model, config, record=Path(folder) / "run")
    try:
        for step in range(100):
            if rank == DEAD and step == last:
                os.kill(os.getpid(), SIGKILL)
            inputs, labels = jobs.batch(rank, step)
            F.cross_entropy(model(inputs), labels).backward()
            handle.note(total_steps=100)
    except LinkError as error:
        (Path(folder) / str(rank)).write_text(str(error))
    handle.close()


def train_sharded(rank: int, port: int, folder: str, level: str) -> None:
    """Two sites of two shards. The second site, ranks 2 and 3, kills itself; the others write their error to a file."""
    import gradwire

    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "GRADWIRE_IFNAME": "lo", "GRADWIRE_HOST": f"machine{rank}"}
    store = TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=4, timeout=timedelta(seconds=60))
    net = sharded.wrap(jobs.small_net(), sharded.mesh_of(4))
    handle = gradwire.attach_fsdp(net, level)
    try:
        for step in range(100):
            if rank >= 2 and step == LAST:
                os.kill(os.getpid(), SIGKILL)
            inputs, labels = jobs.batch(rank, step)
            F.cross_entropy(net(inputs), labels).backward()
    except LinkError as error:
        (Path(folder) / str(rank)).write_text(str(error))
    handle.close()


@pytest.mark.timeout(150)
@pytest.mark.parametrize("level", ["int8", "auto"])
def test_the_shards_of_a_site_name_the_ranks_of_another_site_that_was_killed(tmp_path: Path, level: str) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=train_sharded, args=(rank, store.port, str(tmp_path), level)) for rank in range(4)]
    for process in ranks:
        process.start()
    try:
        for process in ranks:
            process.join(120)
        assert [process.exitcode for process in ranks] == [0, 0, -SIGKILL, -SIGKILL]
    finally:
        for process in ranks:
            process.kill()
            process.join()
    for rank in (0, 1):
        error = (tmp_path / str(rank)).read_text()
        # The two die one after the other: which of them are gone already when a rank looks is up to the machine.
        assert any(f"{one} on machine{one}" in error.partition(" gone")[0] for one in (2, 3)), error


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("config", "last"),
    [
        ({"level": "off"}, LAST),
        ({"level": "auto"}, LAST),
        # Before the first compressed step the ranks compare through the store whether they have a loss scaler.
        ({"level": "int8"}, 0),
        ({"level": "int8", "plan": "star", "transport": {"kind": "ltp", "dead_after": 2.5}}, LAST),
    ],
    ids=["off", "auto", "first step", "plan"],
)
def test_every_rank_names_the_killed_rank_and_its_host_and_the_run_is_failed(
    tmp_path: Path, config: dict[str, Any], last: int
) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    arguments = [(rank, store.port, str(tmp_path), config, last) for rank in range(WORLD)]
    ranks = [context.Process(target=train, args=each) for each in arguments]
    for process in ranks:
        process.start()
    try:
        for process in ranks:
            process.join(120)
        assert [process.exitcode for process in ranks] == [0, -SIGKILL, 0]
    finally:
        for process in ranks:
            process.kill()
            process.join()
    for rank in (0, 2):
        error = (tmp_path / str(rank)).read_text()
        assert error.startswith(f"rank {DEAD} on machine{DEAD} is gone"), error
        assert "]:" not in error, "a port does not name a rank"
    state, _ = fold(tmp_path / "run")
    assert (state.status, state.time_left, state.missing) == ("failed", None, [DEAD])
    (incident,) = [one for one in state.incidents if one.kind == "failed"]
    assert incident.ranks == (0, 2)
    assert f"rank {DEAD} on machine{DEAD} is gone" in " ".join(shown(state, 200).split())
