"""Residuals: they survive rebuilt buckets, checkpoints and a change of world size."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from gradwire.compress.error_feedback import ErrorFeedback, merge_residuals
from gradwire.compress.lowrank import LowRank
from gradwire.compress.residual import DTYPES, ResidualType
from gradwire.errors import ConfigError, LinkError
from gradwire.level import Level
from gradwire.types import Bucket, ParameterSlice

CPU = torch.device("cpu")


def bucket(index: int, *parts: tuple[str, int]) -> Bucket:
    offset, slices = 0, []
    for name, numel in parts:
        slices.append(ParameterSlice(name, offset, (numel,), numel))
        offset += numel
    return Bucket(index, 0, offset, 4, tuple(slices), True)


def test_a_rebuilt_bucket_finds_its_residuals_by_name() -> None:
    feedback = ErrorFeedback(0, 2)
    feedback.worker(bucket(0, ("a", 3), ("b", 2)), CPU).copy_(torch.arange(5.0))
    after = feedback.worker(bucket(0, ("b", 2), ("c", 1)), CPU)
    assert after.tolist() == [3.0, 4.0, 0.0]
    assert feedback.worker(bucket(1, ("a", 3)), CPU).tolist() == [0.0, 1.0, 2.0]


def test_an_owner_residual_is_folded_times_the_world_size() -> None:
    feedback = ErrorFeedback(1, 4)
    one = bucket(0, ("a", 6))
    feedback.worker(one, CPU)
    feedback.owner(one, (2, 2)).fill_(0.5)
    feedback.fold(0)
    assert feedback.worker(one, CPU).tolist() == [0.0, 0.0, 2.0, 2.0, 0.0, 0.0]


def test_a_new_bucket_does_not_change_residuals_that_the_same_step_uses() -> None:
    """Other threads hold the owner residual; folding it meanwhile would lose what they write."""
    feedback = ErrorFeedback(0, 4)
    first = bucket(0, ("a", 4))
    feedback.worker(first, CPU)
    held = feedback.owner(first, (0, 4))
    feedback.worker(bucket(1, ("b", 2)), CPU)
    held.fill_(0.5)
    assert feedback.owner(first, (0, 4)) is held
    feedback.fold(0)
    assert feedback.worker(first, CPU).tolist() == [2.0, 2.0, 2.0, 2.0]


def test_flushing_adds_the_residual_and_clears_it() -> None:
    feedback = ErrorFeedback(0, 2)
    one = bucket(0, ("a", 2))
    feedback.worker(one, CPU).fill_(1.0)
    feedback.owner(one, (0, 1)).fill_(0.25)
    gradient = torch.zeros(2)
    feedback.flush(one, gradient)
    assert gradient.tolist() == [1.5, 1.0]
    assert not feedback.pending(one)
    assert feedback.state_dict()["residuals"] == {}


def test_a_residual_on_the_cpu_is_added_to_a_gradient_on_another_device() -> None:
    """With a plan residuals are on the CPU; after detach() buckets are on the device of DDP."""
    with FakeTensorMode():
        feedback, one = ErrorFeedback(0, 2), bucket(0, ("a", 2))
        feedback.worker(one, CPU)
        gradient = torch.zeros(2, device="cuda")
        saved = feedback.flush(one, gradient)
        assert gradient.device.type == "cuda"
        feedback.restore(saved)
        assert feedback.worker(one, CPU).device == CPU


def test_a_checkpoint_is_restored_by_parameter_name() -> None:
    saved = ErrorFeedback(0, 2)
    saved.worker(bucket(0, ("a", 2), ("b", 1)), CPU).copy_(torch.tensor([1.0, 2.0, 3.0]))
    fresh = ErrorFeedback(0, 2)
    fresh.load_state_dict(saved.state_dict())
    assert fresh.worker(bucket(0, ("b", 1), ("a", 2)), CPU).tolist() == [3.0, 1.0, 2.0]


@pytest.mark.parametrize(("old", "new"), [(4, 2), (2, 4), (3, 2), (4, 4), (1, 3)])
def test_a_change_of_world_size_keeps_the_mean_that_is_owed(old: int, new: int) -> None:
    states = [{"rank": r, "world_size": old, "residuals": {"a": torch.full((3,), float(r + 1))}} for r in range(old)]
    owed = sum(state["residuals"]["a"] for state in states) / old  # type: ignore[index]
    merged = [merge_residuals(states, rank, new) for rank in range(new)]
    assert all(set(one) == {"a"} for one in merged), "ranks would not agree on whether anything waits"
    total = sum((m["a"] for m in merged), torch.zeros(3)) / new
    torch.testing.assert_close(total, owed)


def test_loading_too_few_states_says_what_to_pass() -> None:
    state = {"rank": 0, "world_size": 4, "residuals": {}}
    with pytest.raises(ConfigError, match="states of all old ranks"):
        ErrorFeedback(0, 2).load_state_dict(state)
    with pytest.raises(ConfigError, match="2 states were passed; pass those of all 4 old ranks"):
        ErrorFeedback(0, 2).load_state_dict([state, {**state, "rank": 1}])


def test_a_residual_of_another_model_is_refused() -> None:
    feedback = ErrorFeedback(0, 2)
    feedback.load_state_dict({"rank": 0, "world_size": 2, "residuals": {"a": torch.zeros(7)}})
    with pytest.raises(ConfigError, match="another model"):
        feedback.worker(bucket(0, ("a", 3)), CPU)


def test_momentum_keeps_no_nan_and_passes_it_on() -> None:
    feedback, one = ErrorFeedback(0, 2), bucket(0, ("a", 3))
    feedback.velocity(one, torch.tensor([1.0, 1.0, 1.0]), 0.5)
    gradient = torch.tensor([1.0, float("nan"), float("inf")])
    velocity = feedback.velocity(one, gradient, 0.5)
    assert velocity.tolist() == [1.5, 0.5, 0.5]
    assert gradient[0] == 1.5
    assert not gradient[1:].isfinite().any()


def test_a_new_scale_applies_to_loaded_residuals_and_to_the_velocity() -> None:
    saved, fresh, one = ErrorFeedback(0, 2), ErrorFeedback(0, 2), bucket(0, ("a", 2))
    saved.worker(one, CPU).fill_(1.0)
    fresh.load_state_dict(saved.state_dict())
    fresh.velocity(one, torch.ones(2), 0.5)
    fresh.rescale(2.0)
    assert fresh.worker(one, CPU).tolist() == [2.0, 2.0]
    fresh.rescale(2.0)
    assert fresh.worker(one, CPU).tolist() == [4.0, 4.0]


def test_another_ranks_state_is_refused() -> None:
    saved = ErrorFeedback(0, 2).state_dict()
    with pytest.raises(ConfigError, match="state of rank 0 was passed to rank 1"):
        ErrorFeedback(1, 2).load_state_dict(saved)


def test_velocities_are_saved_and_survive_a_new_layout() -> None:
    saved, fresh = ErrorFeedback(0, 2), ErrorFeedback(0, 2)
    saved.worker(bucket(0, ("a", 2), ("b", 1)), CPU)
    saved.velocity(bucket(0, ("a", 2), ("b", 1)), torch.tensor([1.0, 2.0, 3.0]), 0.5)
    fresh.load_state_dict(saved.state_dict())
    gradient = torch.zeros(3)
    fresh.velocity(bucket(0, ("b", 1), ("a", 2)), gradient, 0.5)
    assert gradient.tolist() == [1.5, 0.5, 1.0]
    assert saved.velocity(bucket(0, ("b", 1)), torch.zeros(1), 0.5).tolist() == [1.5]


def test_a_state_without_velocities_loads() -> None:
    fresh = ErrorFeedback(0, 2)
    fresh.load_state_dict({"rank": 0, "world_size": 2, "residuals": {"a": torch.ones(2)}})
    assert fresh.velocity(bucket(0, ("a", 2)), torch.ones(2), 0.5).tolist() == [1.0, 1.0]


def test_loaded_warm_starts_are_used_on_the_device_of_the_gradient() -> None:
    lowrank = LowRank(Level.parse("lowrank:2"))
    layout = lowrank.layout([ParameterSlice("w", 0, (20, 30), 600)])
    lowrank.load_state_dict({"w": torch.ones(30, 2, dtype=torch.float64)})
    left = lowrank.left(torch.ones(600, device="meta"), layout)
    assert (left.device.type, left.dtype) == ("meta", torch.float32)


def test_a_deferred_return_is_made_before_its_bucket_is_used_again_and_not_sooner() -> None:
    feedback, made = ErrorFeedback(0, 2), list[int]()
    first, second = bucket(0, ("a", 2)), bucket(1, ("b", 2))
    for one in (first, second):
        feedback.worker(one, CPU)
    for one in (first, second):
        feedback.defer(one, partial(made.append, one.index))
    feedback.worker(second, CPU)
    assert made == [1]
    feedback.worker(second, CPU)
    assert made == [1]
    feedback.worker(first, CPU)
    assert made == [1, 0]


def test_a_deferred_return_reaches_its_parameter_when_the_layout_changes() -> None:
    feedback = ErrorFeedback(0, 2)
    old = bucket(0, ("a", 3), ("b", 2))
    residual = feedback.worker(old, CPU)
    feedback.defer(old, lambda: residual.add_(1.0))
    assert feedback.worker(bucket(1, ("b", 2)), CPU).tolist() == [1.0, 1.0]


def test_checkpoints_new_scales_and_undone_steps_include_deferred_returns() -> None:
    feedback = ErrorFeedback(0, 2)
    one = bucket(0, ("a", 2))
    residual = feedback.worker(one, CPU)
    add = lambda: residual.add_(1.0)  # noqa: E731
    feedback.defer(one, add)
    assert feedback.state_dict()["residuals"]["a"].tolist() == [1.0, 1.0]
    feedback.defer(one, add)
    feedback.rescale(2.0)
    assert residual.tolist() == [4.0, 4.0]
    before = feedback.saved(one)
    feedback.defer(one, add)
    feedback.restore(before)
    assert feedback.worker(one, CPU).tolist() == [4.0, 4.0]


def test_at_the_end_a_peer_that_never_reported_is_no_error_and_the_others_count() -> None:
    feedback = ErrorFeedback(0, 2)
    one = bucket(0, ("a", 2))
    residual = feedback.worker(one, CPU)

    def lost() -> None:
        raise LinkError("rank 1 has closed the connection")

    feedback.defer(one, lost)
    feedback.defer(one, lambda: residual.add_(1.0))
    feedback.settle_last()
    assert feedback.state_dict()["residuals"]["a"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("saved_as", "loaded_as"), [("float32", "bfloat16"), ("bfloat16", "float32")])
def test_a_checkpoint_of_the_other_type_of_residuals_is_loaded(saved_as: ResidualType, loaded_as: ResidualType) -> None:
    one, values = bucket(0, ("a", 4096)), torch.linspace(1, 2, 4096)
    saved, loaded = ErrorFeedback(0, 2, saved_as), ErrorFeedback(0, 2, loaded_as)
    saved.add(one, 0, values)
    state = saved.state_dict()
    assert state["residuals"]["a"].dtype == DTYPES[saved_as]
    loaded.load_state_dict(state)
    kept = loaded.worker(one, CPU)
    assert kept.dtype == DTYPES[loaded_as]
    assert float((kept - values).abs().max()) < 2.0**-7
    assert abs(float((kept.double() - values).mean())) < 5 * 2.0**-8 / 4096**0.5


def test_everything_that_is_done_to_residuals_keeps_their_type_and_their_sum() -> None:
    """A change of scale, an owner's share, a step that is undone, a new layout, another number of ranks."""
    feedback, one = ErrorFeedback(1, 4, "bfloat16"), bucket(0, ("a", 2), ("b", 2))
    feedback.add(one, 0, torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert feedback.owner(one, (0, 2)).dtype == torch.bfloat16
    feedback.owner(one, (0, 2)).fill_(2.0)
    saved = feedback.saved(one)
    feedback.worker(one, CPU).zero_()
    feedback.restore(saved)
    feedback.rescale(0.5)
    feedback.set_aside()
    feedback.add(one, 3, torch.tensor([8.0]))
    feedback.take_up()
    moved = feedback.worker(bucket(0, ("b", 2), ("a", 2)), CPU)
    assert moved.dtype == torch.bfloat16
    assert moved.tolist() == [1.5, 10.0, 4.5, 5.0]
    states = [{**feedback.state_dict(), "rank": rank} for rank in range(4)]
    fewer = ErrorFeedback(0, 2, "bfloat16")
    fewer.load_state_dict(states)
    assert fewer.worker(one, CPU).tolist() == [4.5, 5.0, 1.5, 10.0]
    gradient = torch.ones(4)
    fewer.flush(one, gradient)
    assert gradient.tolist() == [5.5, 6.0, 2.5, 11.0]
    assert not fewer.pending(one)
