"""Loss scaling: steps that a scaler skips do not change residuals, and a new scale is applied to them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from gradwire.compress.codec_cache import CodecCache
from gradwire.compress.error_feedback import ErrorFeedback
from gradwire.config import CompressConfig
from gradwire.runtime.loss_scaling import LossScaling, finite
from tests.runtime.sessions import Sessions

RANKS = 3
SHAPES = [[("w", (320, 382)), ("b", (640,))], [("v", (60, 100)), ("c", (144,))], [("tiny", (600,))]]
LEVELS = ["fp16", "int8", "int4", "int2", "topk:0.03", "topk:0.01+int8", "randk:0.05", "sharedk:0.02", "lowrank:4",
          "prune:0.5+topk:0.01", "int8+zstd", "off"]  # fmt: skip
SIZES = [sum(int(torch.Size(shape).numel()) for _, shape in parts) for parts in SHAPES]
State = list[dict[str, Tensor]]


class Scaler:
    """Halves its scale when a step overflowed, as torch's does."""

    def __init__(self, scale: float = 1024.0) -> None:
        self.scale = scale

    def get_scale(self) -> float:
        return self.scale

    def is_enabled(self) -> bool:
        return True

    def skips(self, restored: list[Tensor]) -> bool:
        skipped = not all(bool(bucket.isfinite().all()) for bucket in restored)
        self.scale *= 0.5 if skipped else 1.0
        return skipped


def gradients(seed: int, scale: float = 1.0) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [[scale * torch.randn(size, generator=generator) * (1 + rank) for size in SIZES] for rank in range(RANKS)]


def overflowing(seed: int, bucket: int, scale: float = 1.0) -> list[list[Tensor]]:
    """One value of one rank's bucket is not finite."""
    parts = gradients(seed, scale)
    parts[1][bucket][SIZES[bucket] // 3] = float("inf") if seed % 2 else float("nan")
    return parts


def state(world: Sessions) -> State:
    """The residuals of every rank, velocities included."""
    found = []
    for feedback in world.feedbacks:
        saved = feedback.state_dict()
        found.append(saved["residuals"] | {f"{name} v": value for name, value in saved.get("velocities", {}).items()})
    return found


def assert_same(one: State, other: State, factor: float = 1.0) -> None:
    for before, after in zip(one, other, strict=True):
        assert set(before) == set(after)
        for name in before:
            torch.testing.assert_close(before[name] * factor, after[name], rtol=1e-6, atol=0.0)


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[Sessions]:
    sessions = Sessions(RANKS, SHAPES, CompressConfig(momentum=getattr(request, "param", 0.0)))
    yield sessions
    sessions.close()


def follow(world: Sessions) -> list[Scaler]:
    scalers = [Scaler() for _ in world.sessions]
    for session, scaler in zip(world.sessions, scalers, strict=True):
        session.scaling.follow(scaler)
    return scalers


MOMENTUM = [(level, 0.0) for level in LEVELS] + [("topk:0.03", 0.9), ("off", 0.9)]


@pytest.mark.slow
@pytest.mark.parametrize("bucket", range(len(SHAPES)))
@pytest.mark.parametrize(("level", "world"), MOMENTUM, indirect=["world"])
def test_an_overflow_reaches_every_rank_and_leaves_residuals_as_they_were(
    level: str, bucket: int, world: Sessions
) -> None:
    follow(world)
    world.step("topk:0.03" if level == "off" else level, gradients(0))
    before, factors = state(world), world.codecs[0].factors()
    assert level in ("fp16", "off") or any(value.any() for value in before[0].values())
    restored = world.step(level, overflowing(1, bucket))
    assert not any(own[bucket].isfinite().all() for own in restored)
    assert_same(before, state(world))
    for name, tensor in factors.get(level, {}).items():
        assert torch.equal(tensor, world.codecs[2].factors()[level][name])


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_applied_plus_residual_is_the_gradient_of_the_steps_that_were_not_skipped(level: str, world: Sessions) -> None:
    """Also while the scale changes: everything is counted in units of the true gradient."""
    scalers = follow(world)
    given = [torch.zeros(size, dtype=torch.float64) for size in SIZES]
    applied = [torch.zeros_like(total) for total in given]
    for step in range(12):
        scale = scalers[0].scale
        overflow = step in (0, 3, 4, 9)
        parts = (overflowing if overflow else lambda *args: gradients(args[0], args[2]))(step, step % 3, scale)
        restored = world.step("topk:0.1" if level == "off" and step % 4 == 1 else level, parts)
        skipped = [scaler.skips(own) for scaler, own in zip(scalers, restored, strict=True)]
        assert skipped == [overflow] * RANKS
        if step == 6:
            for scaler in scalers:
                scaler.scale *= 2.0
        if not overflow:
            for index in range(len(SHAPES)):
                given[index] += sum(own[index].double() for own in parts) / scale
                applied[index] += RANKS * restored[0][index].double() / scale
    residuals = world.residuals()
    for parts, total, sent in zip(SHAPES, given, applied, strict=True):
        left = torch.cat([residuals.get(name, torch.zeros(torch.Size(shape).numel())) for name, shape in parts]) / scale
        assert float((total - sent - left).norm() / total.norm()) < 1e-6


@pytest.mark.parametrize("level", ["topk:0.03", "int8", "sharedk:0.02", "lowrank:4", "off"])
def test_without_a_scaler_residuals_stay_finite(level: str, world: Sessions) -> None:
    world.step("topk:0.03", gradients(0))
    before = state(world)
    world.step(level, overflowing(1, 0))
    after = state(world)
    assert all(value.isfinite().all() for own in after for value in own.values())
    if level == "off":
        assert_same(before, after)


def test_a_new_scale_multiplies_residuals_before_the_next_step(world: Sessions) -> None:
    scalers = follow(world)
    world.step("topk:0.03", gradients(0))
    before = state(world)
    for scaler in scalers:
        scaler.scale = 4096.0
    world.step("topk:0.03", overflowing(1, 0))
    assert_same(before, state(world), 4.0)


def test_residuals_that_the_user_rescaled_are_not_rescaled_again(world: Sessions) -> None:
    scalers = follow(world)
    world.step("topk:0.03", gradients(0))
    before = state(world)
    for scaler, session, feedback in zip(scalers, world.sessions, world.feedbacks, strict=True):
        scaler.scale *= 2.0
        feedback.rescale(2.0)
        session.scaling.rescaled(2.0)
    world.step("topk:0.03", overflowing(1, 0))
    assert_same(before, state(world), 2.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_values_that_are_not_finite_are_found_in_every_type(dtype: torch.dtype) -> None:
    values = torch.full((70_000,), float(torch.finfo(dtype).max), dtype=dtype)
    assert finite(values)
    for wrong in ("nan", "inf", "-inf"):
        values[69_999] = float(wrong)
        assert not finite(values)
    assert finite(values[:0])
    assert not finite(values[60_000:].view(-1, 1).to_sparse(1))


def test_a_scaler_is_used_only_where_all_ranks_have_one() -> None:
    scaling = LossScaling(ErrorFeedback(0, 2), CodecCache())
    asked: list[bool] = []
    scaling.all_found = lambda here: bool(asked.append(here))
    scaling.follow(torch.amp.GradScaler("cpu"))
    with pytest.warns(UserWarning, match="another rank has none"):
        scaling.begin(0)
    scaling.begin(1)
    assert asked == [True], "all ranks ask once, at the same step"
    assert scaling.scale == 1.0


@pytest.mark.parametrize("level", ["int8", "topk:0.03", "lowrank:4"])
def test_a_rank_in_join_keeps_its_residuals_while_the_others_change_their_scale(world: Sessions, level: str) -> None:
    """In steps of `model.join()` a rank sends zeros and its scaler is not updated; later it has the others' scale."""
    scalers, last = follow(world), RANKS - 1
    balance = [torch.zeros(size, dtype=torch.float64) for size in SIZES]  # given and not applied, without any scale
    for step in range(6):
        scale, joined = 1024.0 if step < 2 else 512.0, 2 <= step < 5
        for rank, scaler in enumerate(scalers):
            scaler.scale = 1024.0 if joined and rank == last else scale
        given = gradients(step, scale)
        if joined:
            given[last] = [torch.zeros_like(part) for part in given[last]]
        before = state(world) if joined else []
        for rank, session in enumerate(world.sessions):
            session.scaling.prepare(session.step, joined and rank == last)
        if joined:
            assert_same(before, state(world))  # residuals that are set aside are part of the state
        restored = world.step(level, given)[0]
        for index, mean in enumerate(restored):
            own = sum(part[index].double() for part in given)
            balance[index] += (own - RANKS * mean.double()) / scale
    residuals = world.residuals()
    for index, parts in enumerate(SHAPES):
        left = torch.cat([residuals[name] for name, _ in parts]) / 512.0
        assert float((left - balance[index]).norm() / gradients(0)[0][index].norm()) < 1e-4
