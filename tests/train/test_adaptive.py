"""Adaptive levels on real process groups: ranks use the same decision despite changes, stragglers and bad clocks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.decide import registry
from gradwire.decide.base import Job
from gradwire.level import Level
from gradwire.types import Decision, StepFacts, View
from tests.train import jobs
from tests.train.ranks import Ranks


def carries(sensed: Any) -> bool:
    """The bandwidth is known, or what the network carries at least: little traffic does not identify it."""
    return (sensed.bandwidth or sensed.floor) > 0


@pytest.mark.parametrize("controller", ["auto", "netsense", "dc2"])
def test_replicas_stay_identical_while_the_level_moves(ranks: Ranks, controller: str) -> None:
    results = ranks.run(3, jobs.train_small, controller, 25)
    assert all(result["agreed"] for result in results)
    levels = [result["summary"].levels for result in results]
    assert levels[0] == levels[1] == levels[2], "every rank used the same levels equally often"
    assert carries(results[0]["summary"].sensed)
    assert results[0]["summary"].sensed.rtprop > 0


def test_a_backend_named_by_device_adapts_as_well(ranks: Ranks) -> None:
    """It is gloo, whatever torch calls the group, and so round trips are known too."""
    results = ranks.on("cpu:gloo").run(2, jobs.train_small, "auto", 12)
    assert all(result["agreed"] for result in results)
    assert results[0]["summary"].levels == results[1]["summary"].levels
    assert carries(results[0]["summary"].sensed)
    assert results[0]["summary"].sensed.rtprop > 0


def fail_to_attach(rank: int, world: int) -> tuple[str, list[str]]:
    """Rank 1 fails during the startup probe; the error, and gradwire's threads that are left."""
    import threading

    from gradwire.runtime import open_governor

    def cut(pipeline: Any, world_size: int) -> float:
        raise gradwire.LinkError("cut off")

    probe = open_governor.probe_bandwidth
    open_governor.probe_bandwidth = cut if rank == 1 else probe
    try:
        gradwire.attach(DistributedDataParallel(jobs.small_net()), {"level": "auto", "transport": {"timeout": 3}})
    except gradwire.LinkError as error:
        return str(error), [thread.name for thread in threading.enumerate() if thread.name.startswith("gradwire")]
    finally:
        open_governor.probe_bandwidth = probe
    return "attached", []


def test_an_attach_that_fails_leaves_nothing_running(ranks: Ranks) -> None:
    (waited, here), (cut, there) = ranks.run(2, fail_to_attach)
    assert "startup probe" in waited
    assert cut == "cut off"
    assert here == there == []


class ChangingController:
    """Another level at every step, so that every kind of change happens: dense, sparse, low rank, off and back."""

    LEVELS = ("int8", "off", "topk:0.1+int8", "lowrank:2", "fp16", "off", "int4", "int2", "topk:0.03+int8")

    def __init__(self) -> None:
        self._decisions = 0

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        self._decisions += 1
        level = Level.parse(self.LEVELS[self._decisions % len(self.LEVELS)])
        return Decision(level, f"decision {self._decisions}", self._decisions)


def train_with_changes(rank: int, world: int) -> dict[str, Any]:
    registry._BUILT_IN["changing"] = ChangingController  # type: ignore[index]
    return jobs.train_small(rank, world, "changing", 30)


def test_ranks_agree_when_every_step_has_another_level(ranks: Ranks) -> None:
    results = ranks.run(3, train_with_changes)
    assert all(result["agreed"] for result in results)
    assert len(results[0]["summary"].levels) >= 7
    plain = ranks.run(3, jobs.train_small, None, 30)
    assert results[0]["losses"][-1] < results[0]["losses"][0]
    torch.testing.assert_close(results[0]["weights"], plain[0]["weights"], atol=0.1, rtol=1.0)


def straggle(rank: int, world: int) -> dict[str, Any]:
    """Rank 1 computes for ten times as long as the others."""
    import time

    net = jobs.small_net()
    model = DistributedDataParallel(net, bucket_cap_mb=0.02)
    handle = gradwire.attach(model, "auto")
    for step in range(15):
        inputs, labels = jobs.batch(rank, step)
        time.sleep(0.5 if rank == 1 else 0.05)
        F.cross_entropy(model(inputs), labels).backward()
    summary = handle.summary()
    handle.close()
    return {"sensed": summary.sensed, "levels": summary.levels}


def test_a_rank_ten_times_slower_does_not_count_as_a_slow_network(ranks: Ranks) -> None:
    results = ranks.run(2, straggle)
    sensed = results[0]["sensed"]
    # 13 thousand parameters over loopback take milliseconds; waiting for rank 1 would make it half a second.
    assert sensed.delay < 0.25
    assert results[0]["levels"] == results[1]["levels"]


def jump(rank: int, world: int) -> bool:
    """Rank 1's clock jumps an hour ahead in the middle of training."""
    from gradwire import clock

    net = jobs.small_net()
    model = DistributedDataParallel(net, bucket_cap_mb=0.02)
    handle = gradwire.attach(model, "auto")
    original = clock.MonotonicClock.now
    try:
        for step in range(12):
            if rank == 1 and step == 5:
                clock.MonotonicClock.now = lambda self: original(self) + 3600  # type: ignore[method-assign]
            inputs, labels = jobs.batch(rank, step)
            F.cross_entropy(model(inputs), labels).backward()
    finally:
        clock.MonotonicClock.now = original  # type: ignore[method-assign]
        handle.close()
    return jobs.same_everywhere(jobs.flat(net))


def test_a_clock_that_jumps_does_not_stop_training(ranks: Ranks) -> None:
    assert all(ranks.run(2, jump))


def leave(rank: int, world: int) -> str:
    """Rank 1 stops taking part after three steps."""
    net = jobs.small_net()
    model = DistributedDataParallel(net, bucket_cap_mb=0.02)
    handle = gradwire.attach(model, {"level": "auto", "transport": {"timeout": 3}})
    try:
        for step in range(8):
            if rank == 1 and step == 3:
                return "left"
            inputs, labels = jobs.batch(rank, step)
            F.cross_entropy(model(inputs), labels).backward()
    except gradwire.LinkError as error:
        return f"{handle.summary().errors[-1]} {error}"
    finally:
        handle.close()
        if rank == 1:
            dist.destroy_process_group()
    return "no error"


def test_a_rank_that_leaves_is_a_link_error_on_the_others(ranks: Ranks) -> None:
    stayed, left = ranks.run(2, leave)
    assert left == "left"
    assert stayed.startswith("LinkError")
