"""DevicePath: buckets that are encoded on the device get what buckets of host memory get, and every wait is needed.

Triton's kernels are interpreted, as work of the simulated device (tests/device/simulated.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from gradwire.compress.device_memory import ThreadMemory
from gradwire.compress.residual import DTYPES, ResidualType
from gradwire.config import CompressConfig
from gradwire.exchange import select
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
MODES = [
    CompressConfig(encode="gpu", residual_type=kept, residual_memory=memory)
    for kept in get_args(ResidualType)
    for memory in ("auto", "host")
]
NAMES = [f"{mode.residual_type} {mode.residual_memory}" for mode in MODES]
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
@pytest.mark.parametrize("compress", MODES, ids=NAMES)
def test_buckets_encoded_on_a_device_get_what_buckets_of_host_memory_get(
    compress: CompressConfig, level: str, seed: int | None
) -> None:
    host, device = (
        SentFrames(2, SHAPES, replace(compress, encode="host"), own_wire=True),
        SentDeviceFrames(seed, compress),
    )
    assert same(trained(device, [level], steps=2), trained(host, [level], steps=2))
    assert device.sent == host.sent, "other bytes on the wire"
    assert sum(map(len, host.sent.values())) > 0


@pytest.mark.parametrize("left_out", ["wait:encode", "host:encode", "future"])
@pytest.mark.parametrize("compress", [MODES[0], MODES[1]], ids=NAMES[:2])
def test_every_wait_is_needed(left_out: str, compress: CompressConfig) -> None:
    expected = trained(Sessions(2, SHAPES, own_wire=True), ["int8"])
    try:
        found: list[Tensor] = trained(DeviceSessions(ignore=left_out, compress=compress), ["int8"])
    except Exception:  # a frame that was not there yet has no valid header
        return
    assert not same(found, expected)


@pytest.mark.parametrize("compress", [MODES[0], MODES[1]], ids=NAMES[:2])
def test_the_training_thread_never_waits_for_the_device(compress: CompressConfig) -> None:
    world = DeviceSessions(compress=compress)
    trained(world, ["int8", "topk:0.05+int8"], steps=2)
    waiting = set().union(*(device.waiting_threads for device in world.devices))
    assert waiting
    assert all(name.startswith("gradwire-") and name[9:].isdigit() for name in waiting), "threads of the pipeline"


@pytest.mark.parametrize("compress", MODES, ids=NAMES)
def test_levels_without_kernels_take_the_host_path_and_residuals_follow(compress: CompressConfig) -> None:
    levels = ["int4", "lowrank:2", "int4", "off"]
    expected = trained(Sessions(2, SHAPES, replace(compress, encode="host"), own_wire=True), levels, steps=4)
    assert same(trained(DeviceSessions(0, compress=compress), levels, steps=4), expected)


@pytest.mark.parametrize("compress", MODES, ids=NAMES)
def test_residuals_take_what_the_documentation_states_where_it_says(
    compress: CompressConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 or 2 bytes per parameter, and half of that for the shards that a rank of two owns; owners' residuals are made
    where the others are, and copied for an encoding from host memory only."""
    made, copied = list[torch.dtype](), list[int]()
    zeros, take = ThreadMemory.zeros, ThreadMemory.take

    def recorded_zeros(memory: ThreadMemory, numel: int, dtype: torch.dtype) -> Tensor:
        made.append(dtype)
        return zeros(memory, numel, dtype)

    def recorded_take(memory: ThreadMemory, purpose: str, nbytes: int) -> Tensor:
        copied.extend([nbytes] if purpose == "residual" else [])
        return take(memory, purpose, nbytes)

    monkeypatch.setattr(ThreadMemory, "zeros", recorded_zeros)
    monkeypatch.setattr(ThreadMemory, "take", recorded_take)
    monkeypatch.setattr(select, "algorithm", lambda codec, numel, world_size: select.SHARDED)
    world = DeviceSessions(compress=compress)
    world.step("int4", drawn(0))
    each = DTYPES[compress.residual_type].itemsize
    for feedback in world.feedbacks:
        numel = sum(flat.numel() for flat in feedback._residual._flat.values())
        assert sum(flat.nbytes for flat in feedback._residual._flat.values()) == each * numel
        owned = [left for shards in feedback._owned.values() for left in shards.values()]
        assert 0 < sum(left.nbytes for left in owned) <= each * numel * 0.65  # shards end at whole blocks
    world.close()
    on_host = compress.residual_memory == "host"
    assert set(made) == (set() if on_host else {DTYPES[compress.residual_type]})
    assert bool(copied) == on_host
    assert max(copied, default=0) <= each * max(sum(torch.Size(shape).numel() for _, shape in one) for one in SHAPES)


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


@pytest.mark.parametrize("compress", MODES, ids=NAMES)
def test_a_step_that_overflows_leaves_the_residuals_as_they_were(compress: CompressConfig) -> None:
    world = DeviceSessions(compress=compress)
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
