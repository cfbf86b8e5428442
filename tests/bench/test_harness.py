"""The benchmark harness: order of blocks, statistics, the bound, paced gradients, the top-k baseline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.errors import ConfigError
from gradwire.network import preset
from harness.bound import ring_seconds, ring_step
from harness.contestants import CONTESTANTS, find
from harness.job import Block, Job, interleaved
from harness.paced import Paced, Source
from harness.recorded import load
from harness.result import quantile, rows_of
from harness.run import BlockReport
from harness.tcp_payload import Payload, difference
from harness.topk import FixedTopK
from harness.workload import WorkloadSpec
from tests.train.ranks import Ranks

SPEC = WorkloadSpec("paced", "resnet18", 60.0)


def test_contestants_alternate_and_every_second_round_runs_backwards() -> None:
    names = [block.contestant for block in interleaved(["a", "b", "c"], 2)]
    assert names == ["a", "b", "c", "c", "b", "a"]


def test_a_job_is_read_back_as_written(tmp_path: Path) -> None:
    job = Job(SPEC, (Block("ddp", 0), Block("gradwire:int8", 1)), seconds=1.5)
    job.write(tmp_path / "job.json")
    assert Job.read(tmp_path / "job.json") == job


def test_quantiles_lie_between_neighbours() -> None:
    assert quantile([3.0], 0.9) == 3.0
    assert quantile([0.0, 10.0], 0.1) == pytest.approx(1.0)
    assert quantile([5, 1, 4, 2, 3], 0.5) == 3


def test_the_ring_bound_is_bytes_with_headers_over_the_link() -> None:
    network = preset("lan100", 8)
    wire = 2 * 44_000_000 * 7 / 8 * 1538 / 1448
    assert ring_seconds(network, 44_000_000) == pytest.approx(wire / 12.5e6)
    assert ring_step(network, 0, compute=0.3) == pytest.approx(0.3)
    hidden = ring_step(network, 44_000_000, compute=0.3)
    assert hidden == pytest.approx(0.1 + wire / 12.5e6)


def test_counters_of_new_connections_count_from_zero() -> None:
    before = {1: Payload(100, 5)}
    after = {1: Payload(150, 5), 2: Payload(30, 1)}
    assert difference(before, after) == Payload(80, 1)


def test_every_contestant_states_its_settings_and_unknown_ones_are_refused() -> None:
    assert all(entry.settings for entry in CONTESTANTS.values())
    assert find("gradwire:topk:0.01+int8@25").bucket_mb == 25
    with pytest.raises(ConfigError, match="'horovod' is not one of ddp"):
        find("horovod")
    with pytest.raises(ConfigError, match="contestant"):
        find("gradwire:int7")


def report(name: str, repeat: int, times: list[float]) -> BlockReport:
    rank_report: dict[str, Any] = {
        "times": times, "sent": 1000 * len(times), "retransmitted": 0, "cpu": 0.1 * len(times),
        "predicted": 900 * len(times), "loss": 0.0, "data": "",
    }  # fmt: skip
    return BlockReport(Block(name, repeat), {0: rank_report, 1: rank_report})


def test_rows_hold_medians_ratios_and_errors() -> None:
    reports = [
        report("ddp", 0, [4.0, 4.0]), report("gradwire:int8", 0, [1.0, 1.2]), report("gradwire:int8", 1, [1.0, 0.8]),
        report("no-sync", 0, [0.5, 0.5]), BlockReport(Block("fp16-hook", 0), error="h1: ValueError: no"),
    ]  # fmt: skip
    names = ["ring-bound", "ddp", "gradwire:int8", "no-sync", "fp16-hook"]
    rows = {row.contestant: row for row in rows_of(preset("lan100", 2), SPEC, names, reports)}
    assert rows["gradwire:int8"].median == 1.0
    assert rows["gradwire:int8"].steps == 4
    assert rows["gradwire:int8"].speedup == pytest.approx(4.0)
    assert rows["gradwire:int8"].exposed == pytest.approx(0.5)
    assert rows["gradwire:int8"].payload == pytest.approx(1000)
    assert rows["gradwire:int8"].predicted == pytest.approx(900)
    assert rows["ring-bound"].of_bound == pytest.approx(1.0)
    assert "ValueError" in rows["fp16-hook"].error


@pytest.mark.parametrize("model", ["resnet18", "vgg16", "resnet50", "chargpt"])
def test_recorded_models_have_their_known_sizes(model: str) -> None:
    millions = {"resnet18": 11.2, "vgg16": 15.0, "resnet50": 23.5, "chargpt": 10.7}[model]
    assert sum(row.numel for row in load(model)) / 1e6 == pytest.approx(millions, rel=0.02)


def test_paced_gradients_have_the_recorded_scale_and_differ_by_rank_around_a_common_signal() -> None:
    rows = load("resnet18")[:6]
    largest = max(range(6), key=lambda index: rows[index].numel)
    first, again, other = Source(rows, 0), Source(rows, 0), Source(rows, 1)
    out = [torch.empty(rows[largest].shape) for _ in range(3)]
    for source, into in zip((first, again, other), out, strict=True):
        source.write(largest, into)
    assert torch.equal(out[0], out[1])
    scale = float(out[0].square().mean().sqrt())
    assert rows[largest].scale / 3 < scale < 3 * rows[largest].scale
    alike = torch.corrcoef(torch.stack([out[0].flatten(), out[2].flatten()]))[0, 1]
    assert 0.05 < float(alike) < 0.6


def test_a_paced_model_returns_gradients_at_every_step() -> None:
    rows = load("resnet18")
    model = Paced("resnet18", Source(rows, 0), 0.0)
    assert sorted(tuple(p.shape) for p in model.parameters()) == sorted(row.shape for row in rows)
    seen = []
    for _ in range(2):
        model(torch.zeros(1)).sum().backward()
        seen.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert len(seen[0]) == len(seen[1]) == len(rows)
    # Overwritten, not accumulated: the second gradient is no larger than the first.
    sizes = [float(torch.cat([g.flatten() for g in grads]).norm()) for grads in seen]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.1)
    assert not torch.equal(seen[0][0], seen[1][0])


def topk_keeps_everything(rank: int, world_size: int) -> float:
    """Sent gradients plus residuals equal the local gradients, over two steps."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Linear(40, 25, bias=False))
    state = FixedTopK(0.1)
    model.register_comm_hook(state, FixedTopK.hook)
    got, local = torch.zeros(25, 40), torch.zeros(25, 40)
    for _ in range(2):
        inputs = torch.randn(8, 40)
        model.zero_grad()
        out = model(inputs)
        out.square().sum().backward()
        local += 2 * out.detach().T @ inputs
        assert model.module.weight.grad is not None
        assert int((model.module.weight.grad != 0).sum()) <= 100 * world_size
        got += model.module.weight.grad
    residual_sum = sum(residual for residual in state._residuals.values()).view(25, 40)
    balance = local - residual_sum
    dist.all_reduce(balance)
    return float((balance / world_size - got).abs().max() / got.abs().max())


def test_the_top_k_baseline_loses_nothing(ranks: Ranks) -> None:
    assert max(ranks.run(2, topk_keeps_everything)) < 1e-4
