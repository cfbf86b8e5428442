"""A job of four ranks on loopback, watched while it trains."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.events import Noted
from tests.dashboard.conftest import Served, Tab
from tests.observe.recordings import fold
from tests.train.ranks import Ranks


def job(rank: int, world: int, record: str, stop: str) -> int:
    """Trains until a file says stop."""
    from gradwire import attach

    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    handle = attach(model, "auto", record=record)
    steps, going = 0, torch.ones(1)
    while going.item() and steps < 2000:
        loss = model(torch.randn(8, 64)).square().mean()
        loss.backward()
        handle.note(loss.item(), accuracy=0.5, total_steps=2000)
        steps += 1
        time.sleep(0.02)
        going = torch.tensor([0.0 if Path(stop).exists() else 1.0])
        torch.distributed.all_reduce(going, torch.distributed.ReduceOp.MIN)
    handle.close()
    return steps


def test_steps_appear_while_the_job_trains(
    ranks: Ranks, serve: Callable[..., Served], tab: Callable[..., Tab], tmp_path: Path
) -> None:
    runs, stop = tmp_path / "runs", tmp_path / "stop"
    runs.mkdir()
    results: list[list[int]] = []
    training = threading.Thread(
        target=lambda: results.append(ranks.run(4, job, str(runs / "live"), str(stop), timeout=120))
    )
    training.start()
    try:
        served, seen = serve(runs), tab()
        seen.page.goto(f"{served.address}/#/overview")
        seen.page.wait_for_selector(".status.live", timeout=60_000)
        shown = "Number(document.querySelector('[data-test=steps]').textContent.replace(/\\D/g, ''))"
        seen.page.wait_for_function(f"() => {shown} > 3", timeout=20_000)
        before = seen.page.evaluate(shown)
        seen.page.wait_for_function(f"() => {shown} > {before}", timeout=20_000)
        seen.shot("live-overview")
    finally:
        stop.touch()
        training.join(120)
    assert results, "the job failed"
    seen.page.wait_for_selector(".status.finished", timeout=20_000)
    state, records = fold(runs / "live")
    seen.page.wait_for_function(f"() => {shown} === {state.steps}", timeout=20_000)
    assert state.steps > before
    assert len(state.ranks) == 4
    points = served.library.runs["live"].book.columns["accuracy"].points
    assert points == sum(1 for record in records if record.rank == 0 and isinstance(record.event, Noted))
