"""Training over LTP, in real processes on loopback: the same guarantees as over the group's collectives."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.errors import LinkError, NoAnswerError
from gradwire.transport import carrier
from tests.train import jobs
from tests.train.ranks import Ranks
from tests.trials import Trial, decide

LTP = {"transport": {"kind": "ltp", "timeout": 30.0, "dead_after": 4.0}}


def train(rank: int, world: int, level: str | None) -> dict[str, Any]:
    return jobs.train_small(rank, world, level and {**LTP, "level": level})


@pytest.mark.parametrize(
    "level", ["off", "fp16", "int8", "topk:0.05+int8", "sharedk:0.1+fp16", "int8+zstd", "lowrank:2", "auto"]
)
def test_replicas_are_identical_after_every_step(ranks: Ranks, level: str) -> None:
    results = ranks.run(3, train, level)
    assert all(result["agreed"] for result in results)
    assert results[0]["summary"].steps == 12


def whole_gradients(rank: int, world: int, level: str | None, detach: bool = False) -> dict[str, Any]:
    """One backward: the gradient of every rank and what was restored."""
    net = jobs.small_net()
    model = DistributedDataParallel(net, bucket_cap_mb=0.02)
    handle = gradwire.attach(model, {**LTP, "level": level}) if level else None
    if handle is not None and detach:
        handle.detach()
    inputs, labels = jobs.batch(rank, 0)
    own = torch.autograd.grad(F.cross_entropy(net(inputs), labels), list(net.parameters()))
    F.cross_entropy(model(inputs), labels).backward()
    restored = torch.cat([parameter.grad.flatten() for parameter in net.parameters()])  # type: ignore[union-attr]
    mine = torch.cat([part.flatten() for part in own])
    everyone = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(everyone, mine)
    if handle is not None:
        handle.close()
    return {"everyone": everyone, "restored": restored}


def test_off_goes_over_ltp_as_an_exact_sum_in_rank_order(ranks: Ranks) -> None:
    for result in ranks.run(3, whole_gradients, "off"):
        total = result["everyone"][0] * (1 / 3)
        for other in result["everyone"][1:]:
            total += other * (1 / 3)
        assert torch.equal(result["restored"], total)


def test_a_detached_model_is_plain_ddp_on_the_group_bit_for_bit(ranks: Ranks) -> None:
    plain, detached = ranks.run(3, whole_gradients, None), ranks.run(3, whole_gradients, "off", True)
    for one, other in zip(plain, detached, strict=True):
        assert torch.equal(one["restored"], other["restored"])


def test_a_dense_level_trains_as_it_does_over_gloo(ranks: Ranks) -> None:
    gloo, ltp = ranks.run(3, jobs.train_small, "fp16"), ranks.run(3, train, "fp16")
    torch.testing.assert_close(ltp[0]["weights"], gloo[0]["weights"], atol=2e-2, rtol=2e-2)


def with_secret(rank: int, world: int, secrets: list[str]) -> str:
    """Train with this rank's own secret; returns the error of attaching, or its warnings."""
    os.environ["GRADWIRE_SECRET"] = secrets[rank]
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            jobs.train_small(rank, world, {"level": "fp16", "transport": {"kind": "ltp", "connect": 1.0}})
            return " ".join(str(warning.message) for warning in warned)
    except LinkError as error:
        return str(error)
    finally:
        del os.environ["GRADWIRE_SECRET"]


def test_a_wrong_secret_stops_every_rank_and_never_falls_back(ranks: Ranks) -> None:
    secrets = ["0123456789abcdef", "0123456789abcdef", "another secret of length"]
    for text in ranks.run(3, with_secret, secrets):
        assert "GRADWIRE_SECRET differs" in text


def until_it_fails(rank: int, world: int, victim: int, how: int) -> tuple[str, float, float]:
    """Step until a peer is lost; the victim kills itself at step 3. Returns the error, and seconds of its last step."""
    net = jobs.small_net()
    model = DistributedDataParallel(net, bucket_cap_mb=0.02)
    handle = gradwire.attach(model, {**LTP, "level": "fp16"})
    began, longest = time.monotonic(), 0.0
    try:
        for step in range(8):
            began = time.monotonic()
            if rank == victim and step == 3:
                os.kill(os.getpid(), how)
            inputs, labels = jobs.batch(rank, step)
            F.cross_entropy(model(inputs), labels).backward()
            longest = max(longest, time.monotonic() - began)
    except LinkError as error:
        return str(error), time.monotonic() - began, longest
    finally:
        handle.close()
    return "", 0.0, longest


def killed_peer(rank: int, world: int) -> tuple[str, float, float]:
    return until_it_fails(rank, world, victim=2, how=signal.SIGKILL)


def test_a_killed_peer_is_a_link_error_on_every_rank_in_the_stated_time() -> None:
    def trial(_: Trial) -> None:
        own = Ranks()  # its processes die
        try:
            with pytest.raises(AssertionError, match="exit code -9") as failure:
                own.run(3, report_loss, timeout=60)
            assert "no answer" not in str(failure.value)
            assert str(failure.value).count("LOST-IN-TIME") == 2
        finally:
            own.close()

    decide(trial)


def report_loss(rank: int, world: int) -> None:
    """Fail with the error and its time, so that the survivors' reports appear beside the victim's exit code."""
    text, seconds, _ = killed_peer(rank, world)
    # dead_after, plus one keepalive until silence begins, plus slack for a busy machine.
    verdict = "LOST-IN-TIME" if seconds < 4.0 + 1.0 + 5.0 and "rank" in text else "LATE"
    raise AssertionError(f"{verdict}: {seconds:.1f} s: {text}")


def pause(rank: int, world: int) -> tuple[str, float, float]:
    waker: subprocess.Popen[bytes] | None = None
    settings = {"level": "fp16", "transport": {"kind": "ltp", "timeout": 60.0, "dead_after": 15.0}}
    model = DistributedDataParallel(jobs.small_net(), bucket_cap_mb=0.02)
    handle = gradwire.attach(model, settings)
    longest = 0.0
    for step in range(6):
        began = time.monotonic()
        if rank == 0 and step == 3:
            waker = subprocess.Popen(["sh", "-c", f"sleep 4; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP)
        inputs, labels = jobs.batch(rank, step)
        F.cross_entropy(model(inputs), labels).backward()
        longest = max(longest, time.monotonic() - began)
    handle.close()
    if waker is not None:
        waker.wait()
    dist.barrier()
    return "", 0.0, longest


def test_a_paused_peer_is_waited_for(ranks: Ranks) -> None:
    results = ranks.run(3, pause, timeout=80)
    assert all(error == "" for error, _, _ in results)
    assert results[1][2] > 2.0


def over_tcp(rank: int, world: int, level: str) -> dict[str, Any]:
    return jobs.train_small(rank, world, {"level": level, "transport": {"kind": "tcp", "timeout": 30.0}})


@pytest.mark.parametrize("level", ["int8", "topk:0.05+int8", "auto"])
def test_the_same_lanes_run_over_tcp(ranks: Ranks, level: str) -> None:
    results = ranks.run(3, over_tcp, level)
    assert all(result["agreed"] for result in results)


def without_udp(rank: int, world: int) -> tuple[bool, str]:
    """As behind a firewall that drops UDP: no peer answers."""

    def silence(*_: object) -> None:
        raise NoAnswerError("rank 1 at 127.0.0.1 port 9 does not answer")

    known, carrier.connect_ltp = carrier.connect_ltp, silence  # type: ignore[assignment]
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            result = train(rank, world, "int8")
        return bool(result["agreed"]), " ".join(str(warning.message) for warning in warned)
    finally:
        carrier.connect_ltp = known


def test_where_udp_is_blocked_tcp_is_used_with_one_warning(ranks: Ranks) -> None:
    (agreed, warned), *others = ranks.run(3, without_udp)
    assert agreed
    assert warned.count("is not possible here") == 1
    assert "gradients go over TCP instead" in warned
    assert all(agreed and "not possible" not in warned for agreed, warned in others)
