"""What local steps report of themselves is what happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.events import OuterStepped
from tests.observe.recordings import fold
from tests.train.jobs import flat, small_net
from tests.train.local_jobs import sgd, train_step
from tests.train.ranks import Ranks


def job(rank: int, world: int, level: str, record: str) -> tuple[list[dict[str, Any]], str]:
    """Two rounds of three steps and a shorter one: what each must report."""
    net = small_net()
    model = DistributedDataParallel(net)
    optimizer = sgd(net)
    handle = gradwire.attach(model, level, optimizer=optimizer, sync_every=3, record=record)
    expected = []
    shared = flat(net)
    for step in range(7):
        before = handle.step_in_round
        moved = _moved(net, model, optimizer, rank, step, handle)
        if before == 2 or step == 6:
            if step == 6:
                handle.synchronise()
            expected.append(_expected(shared, moved, flat(net), world, rank))
            shared = flat(net)
    text = str(handle.summary())
    handle.close()
    return expected, text


def _moved(net: Any, model: Any, optimizer: Any, rank: int, step: int, handle: Any) -> Tensor:
    """Make a step; this rank's weights right after the inner step, before a round ends."""
    seen: list[Tensor] = []
    rounds = handle._rounds
    count = rounds.count_step

    def observed() -> None:
        seen.append(flat(net))
        count()

    handle._counter._on_step = observed
    train_step(model, optimizer, rank, step)
    handle._counter._on_step = count
    return seen[0]


def _expected(shared: Tensor, moved: Tensor, after: Tensor, world: int, rank: int) -> dict[str, Any]:
    gathered = [torch.empty_like(moved) for _ in range(world)]
    dist.all_gather(gathered, shared - moved)
    pairs = [torch.cosine_similarity(a, b, dim=0) for i, a in enumerate(gathered) for b in gathered[:i]]
    return {
        "own_norm": float(gathered[rank].norm()),
        "norm": float(torch.stack(gathered).square().sum().div(world).sqrt()),
        "alignment": float(torch.stack(pairs).mean()),
        "outer_norm": float((after - shared).norm()),
    }


@pytest.mark.parametrize("level", ["off", "topk:0.05"])
@pytest.mark.parametrize("world", [2, 3])
def test_recorded_rounds_have_the_norms_and_the_alignment_of_the_pseudo_gradients(
    ranks: Ranks, tmp_path: Path, level: str, world: int
) -> None:
    results = ranks.run(world, job, level, str(tmp_path / "run"))
    state, records = fold(tmp_path / "run")
    for rank, (expected, text) in enumerate(results):
        found = [one.event for one in records if isinstance(one.event, OuterStepped) and one.rank == rank]
        assert [event.step for event in found] == [0, 1, 2]
        assert [event.local_steps for event in found] == [3, 3, 1]
        assert found[-1].reason == "synchronise() was called"
        for event, values in zip(found, expected, strict=True):
            for name in ("own_norm", "norm", "outer_norm"):
                assert getattr(event, name) == pytest.approx(values[name], rel=1e-3)
            assert event.alignment == pytest.approx(values["alignment"], abs=0.15)
            assert event.waited >= 0
        assert "local steps: every 3 steps: 3 outer steps, alignment of replicas" in text
    assert state.rounds.count == 3
