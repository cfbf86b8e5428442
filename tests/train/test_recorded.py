"""Recording: what a real job records is what it did."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.events import Attached, Decided, Ended, LinksSensed, Noted, Planned, Stepped, Transferred
from gradwire.observe.summary import Summary
from tests.observe.recordings import fold
from tests.train.ranks import Ranks

STEPS = 12


def job(rank: int, world: int, level: str, record: str) -> Summary:
    from gradwire import attach

    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    model = DistributedDataParallel(net, bucket_cap_mb=0.05)
    handle = attach(model, level, record=record)
    events: list[object] = []
    handle.add_sink(events.append)
    handle.add_sink(_raises)
    for step in range(STEPS):
        loss = model(torch.randn(8, 64)).square().mean()
        loss.backward()
        handle.note(float(loss), accuracy=step / STEPS, total_steps=STEPS, own_number=3.0)
    handle.close()
    assert isinstance(events[0], Attached)
    assert isinstance(events[-1], Ended)
    return handle.summary()


def _raises(event: object) -> None:
    raise ValueError("a broken view")


@pytest.mark.parametrize("level", ["off", "int8", "auto"])
def test_a_recording_has_steps_bytes_levels_and_notes(ranks: Ranks, tmp_path: Path, level: str) -> None:
    summaries = ranks.run(2, job, level, str(tmp_path / "run"))
    state, records = fold(tmp_path / "run")
    steps = [record.event for record in records if isinstance(record.event, Stepped) and record.rank == 0]
    assert [event.step for event in steps] == list(range(STEPS))
    for event in steps:
        parts = (event.compute, event.encode, event.wire, event.wait)
        assert sum(parts) == pytest.approx(event.seconds)
        assert min(parts) >= -1e-9
        assert event.gradient_bytes == summaries[0].gradient_bytes // STEPS
    if level != "auto":
        assert {event.wire_bytes for event in steps} == {summaries[0].wire_bytes // STEPS}
        assert {event.level for event in steps} == {level}
    else:
        assert any(isinstance(record.event, LinksSensed) for record in records)
        assert state.sensed is not None
        assert state.links[0, 1].rtt is not None
    assert any(isinstance(record.event, Decided) for record in records)
    notes = [record.event for record in records if isinstance(record.event, Noted) and record.rank == 1]
    assert [note.step for note in notes] == list(range(1, STEPS + 1))
    assert notes[-1].values == {"own_number": 3.0}
    assert state.total_steps == STEPS
    assert state.ended
    assert state.config["level"] == level
    assert state.dropped == 0
    received = [record.event for record in records if isinstance(record.event, Transferred) and record.rank == 0]
    if level != "auto":
        assert sum(event.nbytes for event in received) == sum(event.wire_bytes for event in steps)
    assert {event.peer for event in received} <= ({-1} if level == "off" else {-1, 1})


def own_wire(rank: int, world: int, plan: str, record: str) -> None:
    """A few steps over LTP, with three quarters of a contribution being enough; then detach and continue."""
    from gradwire import attach

    transport = {"kind": "ltp", "timeout": 30.0, "tolerance": 0.75}
    net = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 10))
    model = DistributedDataParallel(net, bucket_cap_mb=0.5)
    # On a busy machine the steps may last until unused links would be probed, which are transfers too.
    settings = {"level": "int8", "transport": transport, "plan": plan, "planning": {"probe": False}}
    handle = attach(model, settings, record=record)
    for step in range(STEPS):
        if step == STEPS - 3:
            handle.detach()
        model(torch.randn(8, 64)).square().mean().backward()
    handle.close()


@pytest.mark.parametrize("plan", ["", "star"])
def test_gradwires_own_wire_records_transfers_and_links(ranks: Ranks, tmp_path: Path, plan: str) -> None:
    ranks.run(3, own_wire, plan, str(tmp_path / "run"))
    state, records = fold(tmp_path / "run")
    transfers = [(record.rank, record.event) for record in records if isinstance(record.event, Transferred)]
    pairs = {(event.peer, rank) for rank, event in transfers if event.transfers}
    everyone = {(a, b) for a in range(3) for b in range(3) if a != b}
    assert pairs == ({(0, 1), (1, 0), (0, 2), (2, 0)} if plan else everyone)
    assert state.transport.nbytes > 0
    assert sum(state.transport.closes.values()) == state.transport.transfers
    # What receivers did not wait for is returned to the senders' residuals: nothing is lost.
    assert state.transport.missing == state.transport.returned
    assert set(state.links) >= pairs
    assert all(link.rtt for link in state.links.values())
    last = [record.event.step for record in records if isinstance(record.event, Stepped) and record.rank == 1]
    assert last == list(range(STEPS - 3))
    plans = [record for record in records if isinstance(record.event, Planned)]
    assert [record.rank for record in plans] == ([0] if plan else [])


def profiled(rank: int, world: int) -> set[str]:
    from torch.profiler import ProfilerActivity, profile

    from gradwire import attach

    model = DistributedDataParallel(nn.Linear(64, 64))
    handle = attach(model, "int8")
    config = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=config) as seen:
        for _ in range(3):
            model(torch.randn(8, 64)).sum().backward()
    handle.close()
    return {event.name for event in seen.events() or () if event.name.startswith("gradwire::")}


def test_the_profiler_shows_ranges_of_all_threads(ranks: Ranks) -> None:
    for names in ranks.run(2, profiled):
        assert {"gradwire::hook", "gradwire::settle", "gradwire::encode", "gradwire::wire"} <= names
