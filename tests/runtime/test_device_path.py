"""DevicePath: buckets that are encoded on the device get what buckets of host memory get, and every wait is needed.

Triton's kernels are interpreted, as work of the simulated device (tests/device/simulated.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from gradwire.compress.residual import ResidualType
from gradwire.config import CompressConfig
from gradwire.transport.lanes.base import AllGather, AllToAll
from tests.compress.interpreted import launch
from tests.runtime.sessions import Sessions
from tests.runtime.test_host_path import (
    SHAPES,
    DeviceSessions,
    Fail,
    OverflowScaler,
    drawn,
    fail_events,
    fail_streams,
    same,
    trained,
)

assert launch.INTERPRETED
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
LEVELS = ["int8", "int4", "int2", "fp16", "topk:0.05+int8", "topk:0.2", "exactk:0.03+bf16"]


class SentFrames(Sessions):
    """Records the bytes that every rank sends."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.sent = _record(self)


class SentDeviceFrames(DeviceSessions):
    def __init__(self, seed: int | None, compress: CompressConfig) -> None:
        super().__init__(seed, compress=compress)
        self.sent = _record(self)


def _record(world: Sessions) -> dict[tuple[int, int], list[bytes]]:
    """By rank and lane: the used bytes of the frames that were sent, in order; what pads a frame is left out."""
    found: dict[tuple[int, int], list[bytes]] = {}
    for rank, context in enumerate(world.contexts):
        for number, lane in enumerate(context.pipeline._lanes):
            sent = found[rank, number] = []

            def start(op: Any, inner: Any = lane.start, sent: list[bytes] = sent) -> Any:
                sent += list(_used(op))
                return inner(op)

            lane.start = start  # type: ignore[method-assign]
    return found


def _used(op: Any) -> Iterator[bytes]:
    if isinstance(op, AllGather | AllToAll):
        for frame in op.send.view(-1, op.send.shape[-1]):
            body = int(frame[20:24].clone().view(torch.int32))
            yield frame[: 32 + body].numpy().tobytes()


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("kept", "memory"), [("float32", "auto"), ("bfloat16", "auto"), ("float32", "host"), ("bfloat16", "host")]
)
def test_buckets_encoded_on_a_device_get_what_buckets_of_host_memory_get(
    kept: ResidualType, memory: Literal["auto", "host"], level: str, seed: int | None
) -> None:
    compress = CompressConfig(encode="gpu", residual_type=kept, residual_memory=memory)
    host, device = (
        SentFrames(2, SHAPES, replace(compress, encode="host"), own_wire=True),
        SentDeviceFrames(seed, compress),
    )
    assert same(trained(device, [level], steps=2), trained(host, [level], steps=2))
    assert device.sent == host.sent, "other bytes on the wire"
    assert sum(map(len, host.sent.values())) > 0


@pytest.mark.parametrize("left_out", ["wait:encode", "host:encode", "future"])
def test_every_wait_is_needed(left_out: str) -> None:
    expected = trained(Sessions(2, SHAPES, own_wire=True), ["int8"])
    try:
        found: list[Tensor] = trained(DeviceSessions(ignore=left_out, encode="gpu"), ["int8"])
    except Exception:  # a frame that was not there yet has no valid header
        return
    assert not same(found, expected)


def test_the_training_thread_never_waits_for_the_device() -> None:
    world = DeviceSessions(encode="gpu")
    trained(world, ["int8", "topk:0.05+int8"], steps=2)
    waiting = set().union(*(device.waiting_threads for device in world.devices))
    assert waiting
    assert all(name.startswith("gradwire-") and name[9:].isdigit() for name in waiting), "threads of the pipeline"


def test_levels_without_kernels_take_the_host_path_and_residuals_follow() -> None:
    levels = ["int4", "lowrank:2", "int4", "off"]
    expected = trained(Sessions(2, SHAPES, own_wire=True), levels, steps=4)
    assert same(trained(DeviceSessions(0, encode="gpu"), levels, steps=4), expected)


def test_half_precision_is_encoded_on_the_device() -> None:
    expected = trained(Sessions(2, SHAPES, own_wire=True), ["int8"], torch.bfloat16, steps=2)
    restored = trained(DeviceSessions(encode="gpu"), ["int8"], torch.bfloat16, steps=2)
    assert {one.dtype for one in restored} == {torch.bfloat16}
    assert same(restored, expected)


@pytest.mark.parametrize("fail", [fail_events, fail_streams])
def test_a_device_that_failed_ends_the_step(fail: Fail, monkeypatch: pytest.MonkeyPatch) -> None:
    world = DeviceSessions(encode="gpu")
    for device in world.devices:
        fail(device, monkeypatch)
    with pytest.raises(RuntimeError, match="an illegal memory access"):
        world.step("int8", drawn(0))
    world.close()


def test_a_step_that_overflows_leaves_the_residuals_as_they_were() -> None:
    world = DeviceSessions(encode="gpu")
    for session in world.sessions:
        session.scaling.follow(OverflowScaler())
    world.step("int4", drawn(0))
    before = [feedback.state_dict()["residuals"] for feedback in world.feedbacks]
    overflowing = drawn(1)
    overflowing[0][1][7] = float("inf")
    world.step("int4", overflowing)
    after = [feedback.state_dict()["residuals"] for feedback in world.feedbacks]
    world.close()
    assert all(torch.equal(old[name], new[name]) for old, new in zip(before, after, strict=True) for name in old)
