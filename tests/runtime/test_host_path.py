"""HostPath: buckets of device memory get what buckets of host memory get, bit for bit, and every wait is needed.

The simulated device (tests/device/simulated.py) runs work as late as events allow, or some of it early, by a seed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.futures import Future

from gradwire.compress.base import Weights
from gradwire.compress.gradient_sample import GradientSampler
from gradwire.compress.residual import ResidualType
from gradwire.config import CompressConfig
from gradwire.errors import LinkError
from gradwire.events import Synchronised
from gradwire.level import Level
from gradwire.runtime import factor_groups
from gradwire.runtime.bucket_work import PendingBucket
from gradwire.runtime.compressed_path import CompressedPath
from gradwire.runtime.device_work import DeviceWork
from gradwire.runtime.host_path import HostWeights
from gradwire.runtime.plain_path import AllReduceMean
from gradwire.transport.lanes.base import AllReduce
from gradwire.transport.lanes.loopback import Loopback
from gradwire.types import Bucket, Decision
from tests.device.simulated import SimulatedDevice, SimulatedEvent, SimulatedFuture
from tests.runtime.sessions import ConstantWeights, Sessions, buckets

SHAPES = [[("a", (60, 20))], [("b", (30, 40)), ("c", (90,))]]
SLOT = 1024  # bytes: a bucket goes through the slots in several pieces
STEPS = 3
SEEDS = [None, 0, 1]


class DeviceSessions(Sessions):
    """Gradients are computed on a device of each rank, by work that its training stream has not done yet when the
    bucket is passed to the session; what is restored is read by later work of the same stream."""

    def __init__(
        self,
        seed: int | None = None,
        ignore: str = "",
        *,
        own_wire: bool = True,
        encode: Literal["host", "gpu"] = "host",
        compress: CompressConfig | None = None,
    ) -> None:
        self.devices = [SimulatedDevice(seed, ignore) for _ in range(2)]
        found = [device.find for device in self.devices]
        super().__init__(
            2, SHAPES, compress or CompressConfig(encode=encode), own_wire=own_wire, devices=found, slot=SLOT
        )

    def all_reduce(self, world: Loopback, rank: int) -> AllReduceMean:
        """As NCCL does it: on a stream of its own; the future is done when the all-reduce is queued."""
        device, lane = self.devices[rank], world.lane(rank)
        nccl = device.new_stream("nccl")

        def all_reduce(buffer: Tensor) -> SimulatedFuture:
            nccl.wait_event(device.current_stream().record_event())
            nccl.launch(lambda: lane.start(AllReduce(buffer.mul_(0.5))).wait())
            future = SimulatedFuture(device)
            device.complete(future, [buffer], nccl)  # type: ignore[arg-type]
            return future

        return all_reduce

    def _backward(self, rank: int, level: Level, gradients: list[Tensor]) -> None:
        session, device = self.sessions[rank], self.devices[rank]
        self.governors[rank].decision = Decision(level, "the test's level")
        memory = [device.memory(gradient.numel(), dtype=gradient.dtype) for gradient in gradients]
        for bucket, buffer, gradient in zip(buckets(SHAPES, session.step), memory, gradients, strict=True):
            device.default.launch(partial(buffer.copy_, gradient.clone()))
            if bucket.is_last:
                session.step += 1
            session.synchronise(bucket, buffer, ConstantWeights(bucket.numel))
        session.settle()
        for buffer, gradient in zip(memory, gradients, strict=True):
            device.default.launch(partial(gradient.copy_, buffer))
        device.finish()


def drawn(step: int, dtype: torch.dtype = torch.float32) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(step)
    sizes = [sum(int(torch.Size(shape).numel()) for _, shape in parts) for parts in SHAPES]
    return [[torch.randn(size, generator=generator).to(dtype) for size in sizes] for _ in range(2)]


def trained(
    world: Sessions, levels: Sequence[str], dtype: torch.dtype = torch.float32, steps: int = STEPS
) -> list[Tensor]:
    """Everything that all ranks restored."""
    restored: list[Tensor] = []
    for step in range(steps):
        for own in world.step(levels[step % len(levels)], drawn(step, dtype)):
            restored += own
    world.close()
    return restored


def same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(map(torch.equal, one, other))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("level", ["int8", "int4", "topk:0.05+int8", "sharedk:0.1", "lowrank:2", "fp16", "off"])
def test_buckets_of_a_device_get_what_buckets_of_host_memory_get(level: str, seed: int | None) -> None:
    expected = trained(Sessions(2, SHAPES, own_wire=True), [level])
    assert same(trained(DeviceSessions(seed), [level]), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_crosses_the_bus_as_it_is(dtype: torch.dtype) -> None:
    expected = trained(Sessions(2, SHAPES, own_wire=True), ["int8", "off"], dtype)
    restored = trained(DeviceSessions(), ["int8", "off"], dtype)
    assert {one.dtype for one in restored} == {dtype}
    assert same(restored, expected)


@pytest.mark.parametrize("left_out", ["wait:download", "host:download", "host:upload", "future"])
def test_every_wait_is_needed(left_out: str) -> None:
    expected = trained(Sessions(2, SHAPES, own_wire=True), ["int8"])
    assert not same(trained(DeviceSessions(ignore=left_out), ["int8"]), expected)


def test_training_needs_the_wait_for_an_all_reduce_on_the_device() -> None:
    expected = trained(Sessions(2, SHAPES), ["off"])
    assert same(trained(DeviceSessions(own_wire=False), ["off"]), expected)
    assert not same(trained(DeviceSessions(ignore="future", own_wire=False), ["off"]), expected)


def test_the_training_thread_never_waits_for_the_device() -> None:
    world = DeviceSessions()
    trained(world, ["int8", "off", "lowrank:2"])
    waiting = set().union(*(device.waiting_threads for device in world.devices))
    assert waiting == {"gradwire-download", "gradwire-upload"}


def test_off_on_the_process_group_copies_nothing_to_the_host() -> None:
    world = DeviceSessions(own_wire=False)
    trained(world, ["off"])
    assert not any(device.waiting_threads for device in world.devices)


@pytest.mark.parametrize("own_wire", [False, True])
def test_off_after_compressed_steps_sends_what_they_left(own_wire: bool) -> None:
    levels = ["topk:0.05", "off", "off"]
    expected = trained(Sessions(2, SHAPES, own_wire=own_wire), levels)
    world = DeviceSessions(0, own_wire=own_wire)
    assert same(trained(world, levels), expected)
    assert all(feedback.state_dict()["residuals"] == {} for feedback in world.feedbacks)


def test_an_all_reduce_is_timed_by_events_and_not_by_its_future() -> None:
    """The future is done at once; the all-reduce ends when the device has done it, which the host sees later."""
    world = DeviceSessions(own_wire=False)
    world.step("off", drawn(0))
    assert all(context.watcher.catch_up(10) for context in world.contexts)
    assert len(world.timings) == 4, "two buckets on two ranks"
    assert all(finished >= started for started, finished, _ in world.timings)
    assert len([event for event in world.events if isinstance(event, Synchronised)]) == 4
    assert all(len(context.timer._ready) == 2 for context in world.contexts)
    world.close()


def test_a_step_that_the_device_never_ends_is_a_link_error() -> None:
    world = DeviceSessions(own_wire=False)
    (context, *_), (host, *_) = world.contexts, [session._parts.host for session in world.sessions]
    host._timeout = 0.01
    context.watcher.watch(NeverDone(), lambda now: None)
    with pytest.raises(LinkError, match="no answer for"):
        host.catch_up()
    world.close()


@pytest.mark.parametrize(
    ("dtype", "kept", "bytes_per_parameter"),
    [
        (torch.float32, "float32", 10.0),
        (torch.float16, "float32", 8.0),
        (torch.float32, "bfloat16", 7.0),
        (torch.float16, "bfloat16", 5.0),
    ],
)
def test_host_memory_is_what_the_documentation_states(
    dtype: torch.dtype, kept: ResidualType, bytes_per_parameter: float
) -> None:
    """Residual 4 or 2, values as large as the gradient, and half of the residual for the shard that this rank owns."""
    world = DeviceSessions(compress=CompressConfig(residual_type=kept))
    world.step("int8", drawn(0, dtype))
    for feedback, session in zip(world.feedbacks, world.sessions, strict=True):
        tensors = [*session._parts.host._values.values(), *feedback._residual._flat.values()]
        tensors += [left for owned in feedback._owned.values() for left in owned.values()]
        numel = sum(value.numel() for value in feedback._residual._flat.values())
        assert sum(tensor.nbytes for tensor in tensors) <= bytes_per_parameter * numel
    world.close()


@pytest.mark.parametrize("own_wire", [False, True])
def test_pinned_memory_is_four_slots_also_where_whole_residuals_are_sent(
    own_wire: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned: dict[SimulatedDevice, list[int]] = {}

    def record(device: SimulatedDevice, nbytes: int) -> Tensor:
        pinned.setdefault(device, []).append(nbytes)
        return make(device, nbytes)

    make = SimulatedDevice.pinned
    monkeypatch.setattr(SimulatedDevice, "pinned", record)
    trained(DeviceSessions(own_wire=own_wire), ["int4", "off"])
    assert list(pinned.values()) == [[SLOT] * 4] * 2


class NeverDone:
    def query(self) -> bool:
        return False

    def synchronize(self) -> None:
        raise AssertionError("nobody waits on the host")


def test_an_error_of_the_path_reaches_the_training_loop_with_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: CompressedPath, *arguments: object) -> PendingBucket:
        raise LinkError("rank 1 is gone")

    world = DeviceSessions()
    with monkeypatch.context() as patched:
        patched.setattr(CompressedPath, "submit", broken)
        with pytest.raises(LinkError, match="rank 1 is gone"):
            world.step("int8", drawn(0))
        for session in world.sessions:  # the buckets behind the failed one are refused too, before submit works again
            passed = threading.Event()
            session._parts.host.after_buckets(passed.set)
            assert passed.wait(10)
    assert world.step("int8", drawn(0))[0][0].isfinite().all(), "the threads go on"
    world.close()


Fail = Callable[[SimulatedDevice, pytest.MonkeyPatch], None]


def fail_events(device: SimulatedDevice, patched: pytest.MonkeyPatch) -> None:
    """As CUDA after an illegal access: no call to the device works any more."""

    def failing(*arguments: object) -> None:
        raise RuntimeError("an illegal memory access")

    patched.setattr(SimulatedEvent, "synchronize", failing)
    patched.setattr(device, "complete", failing)


def fail_streams(device: SimulatedDevice, patched: pytest.MonkeyPatch) -> None:
    def failing(name: str) -> None:
        raise RuntimeError("an illegal memory access")

    patched.setattr(device, "new_stream", failing)


@pytest.mark.parametrize("fail", [fail_events, fail_streams])
def test_a_device_that_failed_ends_the_step(fail: Fail, monkeypatch: pytest.MonkeyPatch) -> None:
    world = DeviceSessions()
    for device in world.devices:
        fail(device, monkeypatch)
    with pytest.raises(RuntimeError, match="an illegal memory access"):
        world.step("int8", drawn(0))
    world.close()


def test_an_error_behind_the_last_bucket_fails_the_buckets_that_waited_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Low rank keeps buckets until the end of the step where no bucket is the last: without it they never end."""

    def broken(self: CompressedPath) -> None:
        raise LinkError("rank 1 is gone")

    world = DeviceSessions()
    monkeypatch.setattr(factor_groups, "ends_group", lambda *arguments: False)
    monkeypatch.setattr(CompressedPath, "end_step", broken)
    with pytest.raises(LinkError, match="rank 1 is gone"):
        world.step("lowrank:2", drawn(0))
    world.close()


class LongExchange(Future[Tensor]):
    """The bucket is back when the training thread has waited three times as long as it waits for the device."""

    def __init__(self, work: DeviceWork, device: SimulatedDevice) -> None:
        super().__init__()
        self._work, self._device = work, device
        self.asked = 0

    def done(self) -> bool:
        self.asked += 1
        if self.asked == 3:
            self._work.complete(self._device.default)
        return False


def test_a_copy_that_the_device_never_ends_is_a_link_error_and_an_exchange_may_take_longer() -> None:
    device = SimulatedDevice()
    work = DeviceWork(device, device.memory(4), timeout=0.01)
    with pytest.raises(LinkError, match=r"did not copy a bucket within 0\.01 s"):
        work.wait()
    work.exchange = LongExchange(work, device)
    work.wait()
    assert work.exchange.asked == 3


class OverflowScaler:
    def get_scale(self) -> float:
        return 1.0

    def is_enabled(self) -> bool:
        return True


def test_a_step_that_overflows_leaves_the_residuals_as_they_were() -> None:
    world = DeviceSessions()
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


class ScaleOfDevice(OverflowScaler):
    """Its scale is on the device: to read it is to wait for the stream that is current."""

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device
        self.read_on: list[str] = []

    def get_scale(self) -> float:
        self.read_on.append(self._device.current_stream().name)
        return 1.0


def test_a_loss_scale_is_read_behind_the_gradient_and_not_behind_the_rest_of_backward() -> None:
    world = DeviceSessions()
    scalers = [ScaleOfDevice(device) for device in world.devices]
    for session, scaler in zip(world.sessions, scalers, strict=True):
        session.scaling.follow(scaler)
    trained(world, ["int8", "off"], steps=2)
    assert [scaler.read_on for scaler in scalers] == [["download", "download"]] * 2


class OneAfterTheOther(DeviceSessions):
    """The first bucket is back on the device before the second is passed to the session."""

    def _backward(self, rank: int, level: Level, gradients: list[Tensor]) -> None:
        session = self.sessions[rank]
        synchronise = session.synchronise

        def wait_first(bucket: Bucket, buffer: Tensor, weights: Weights) -> Future[Tensor]:
            for work in session._in_flight:
                work.wait()
            return synchronise(bucket, buffer, weights)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(session, "synchronise", wait_first)
            super()._backward(rank, level, gradients)


def left_by_an_overflow(world: Sessions) -> list[dict[str, Tensor]]:
    """Residuals after an `off` step that has a residual in the second bucket and overflows in the first."""
    world.step("int4", drawn(0))
    for feedback in world.feedbacks:
        state = feedback.state_dict()
        state["residuals"].pop("a")
        feedback.load_state_dict(state)
    overflowing = drawn(1)
    overflowing[0][0][7] = float("inf")
    world.step("off", overflowing)
    world.close()
    return [feedback.state_dict()["residuals"] for feedback in world.feedbacks]


def test_a_bucket_that_overflows_before_a_later_one_sends_its_residual_is_seen() -> None:
    expected = left_by_an_overflow(Sessions(2, SHAPES, own_wire=True))
    left = left_by_an_overflow(OneAfterTheOther())
    assert [set(own) for own in expected] == [{"b", "c"}] * 2
    for one, other in zip(left, expected, strict=True):
        assert set(one) == set(other)
        assert all(torch.equal(one[name], other[name]) for name in other)


def test_weights_of_a_device_are_read_when_it_has_them_and_pruned_before_the_mean() -> None:
    device, values = SimulatedDevice(), ConstantWeights(10)
    stream = device.new_stream("upload")
    weights = HostWeights(values, stream)
    assert torch.equal(weights.read(2, 3), values.read(2, 3))
    weights.zero(torch.tensor([4]))
    assert values.read(4, 1) != 0, "launched, not done"
    stream.record_event().synchronize()
    assert values.read(4, 1) == 0


def test_a_sample_of_a_device_is_that_of_its_gradient() -> None:
    device, gradient = SimulatedDevice(), torch.randn(10_000)
    memory = device.memory(10_000)
    on_host, on_device = GradientSampler(10_000), GradientSampler(10_000)
    for _ in range(2):
        device.default.launch(lambda: memory.copy_(gradient))
        for _ in range(2):  # two buckets of the same size
            on_device.add(memory, device)
            on_host.add(gradient)
        device.finish()
        expected, sample = on_host.take_step(), on_device.take_step()
        assert expected is not None
        assert sample is not None
        assert (sample == expected).all()
