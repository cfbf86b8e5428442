"""DDP integration: off is plain DDP to the bit, compressed replicas agree, errors keep their type."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.train import jobs
from tests.train.ranks import Ranks

COMPRESSED = ["fp16", "int8", "topk:0.05+int8", "lowrank:2"]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_off_is_plain_ddp_bit_for_bit(ranks: Ranks, world: int) -> None:
    plain = ranks.run(world, jobs.train_small, None)
    off = ranks.run(world, jobs.train_small, "off")
    for one, other in zip(plain, off, strict=True):
        assert torch.equal(one["weights"], other["weights"])
        assert one["losses"] == other["losses"]


@pytest.mark.parametrize(
    "level", [*COMPRESSED, "bf16", "int4", "int2", "randk:0.2", "sharedk:0.1+fp16", "prune:0.5+int8"]
)
def test_replicas_are_identical_after_every_step(ranks: Ranks, level: str) -> None:
    results = ranks.run(3, jobs.train_small, level)
    assert all(result["agreed"] for result in results)
    summary = results[0]["summary"]
    assert summary.steps == 12
    assert summary.wire_bytes < summary.plain_bytes
    assert summary.levels.keys() == {level}


def test_one_rank_sends_nothing_and_trains_as_before(ranks: Ranks) -> None:
    plain, compressed = (ranks.run(1, jobs.train_small, level)[0] for level in (None, "int8"))
    assert torch.equal(plain["weights"], compressed["weights"])
    assert "one rank" in compressed["summary"].reasons[0]


def test_a_static_graph_trains(ranks: Ranks) -> None:
    def close(level: str | None) -> torch.Tensor:
        return ranks.run(2, _static, level)[0]["weights"]  # type: ignore[no-any-return]

    torch.testing.assert_close(close("fp16"), close(None), atol=1e-2, rtol=1e-2)


def _static(rank: int, world: int, level: str | None) -> dict[str, object]:
    return jobs.train_small(rank, world, level, static_graph=True)


@pytest.mark.parametrize("job", [jobs.accumulate, jobs.unused_parameters, jobs.mixed_dtypes])
def test_ddp_features_give_plain_results_with_off_and_close_ones_with_int8(ranks: Ranks, job) -> None:  # type: ignore[no-untyped-def]
    plain = ranks.run(2, job, None)[0]
    assert torch.equal(ranks.run(2, job, "off")[0], plain)
    torch.testing.assert_close(ranks.run(2, job, "int8")[0], plain, atol=2e-2, rtol=5e-2)


MOMENTUM = {"level": "topk:0.05", "compress": {"momentum": 0.9}}
BFLOAT16 = {"residual_type": "bfloat16"}
HALF = {"level": "topk:0.05", "compress": {"momentum": 0.9, **BFLOAT16}}


@pytest.mark.parametrize("level", ["topk:0.05+fp16", "int8", "lowrank:2", MOMENTUM, HALF])
def test_a_job_resumed_from_a_checkpoint_ends_like_one_that_was_not_stopped(ranks: Ranks, level: Any) -> None:
    # Owners' residuals are folded into workers' at a checkpoint, which moves a rounding error, not a gradient.
    for whole, resumed in ranks.run(2, jobs.resume, level):
        torch.testing.assert_close(resumed, whole, atol=1e-2, rtol=1e-2)


def test_an_error_in_a_background_thread_reaches_the_training_loop_with_its_type(ranks: Ranks) -> None:
    assert ranks.run(2, jobs.fail_in_encoder) == ["LinkError at step 3", "MemoryError at step 3"]


def test_detach_sends_the_residuals_and_continues_as_plain_ddp(ranks: Ranks) -> None:
    for agreed, levels in ranks.run(2, jobs.detach_half_way):
        assert agreed
        assert set(levels) == {"int8", "off"}


@pytest.mark.slow
@pytest.mark.parametrize("level", ["fp16", "int8", "int4", "int2", "topk:0.05+int8", "lowrank:4", "sharedk:0.05+fp16"])
def test_digits_are_learnt_as_well_as_without_compression(ranks: Ranks, level: str) -> None:
    _check_digits(ranks, level)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["int4", "topk:0.01+int8", "lowrank:4"])
def test_digits_are_learnt_as_well_with_residuals_in_bfloat16(ranks: Ranks, level: str) -> None:
    _check_digits(ranks, {"level": level, "compress": BFLOAT16})


def _check_digits(ranks: Ranks, level: Any) -> None:
    plain, compressed = ranks.run(2, jobs.digits, "off")[0], ranks.run(2, jobs.digits, level)[0]
    # 397 test images: one image is 0.25 points, and two runs of the same job differ by two or three of them.
    assert compressed >= plain - 0.0125


def _corrupted(rank: int, world: int, level: dict[str, object]) -> str:
    """Rank 1 restores one element differently at step 3."""
    import gradwire
    from gradwire.compress import dense

    original = dense.DenseCodec.decode
    calls = 0

    def wrong(self, frame, out, *args, **kwargs):  # type: ignore[no-untyped-def]
        nonlocal calls
        calls += 1
        original(self, frame, out, *args, **kwargs)
        if rank == 1 and calls > 20 and out.numel():
            out[0] += 1

    dense.DenseCodec.decode = wrong  # type: ignore[method-assign]
    try:
        jobs.train_small(rank, world, level)  # type: ignore[arg-type]
    except gradwire.IntegrityError as error:
        return str(error)
    finally:
        dense.DenseCodec.decode = original  # type: ignore[method-assign]
    return "no error"


def test_a_replica_that_differs_is_found_when_asked_for(ranks: Ranks) -> None:
    level = {"level": "int8", "observe": {"verify": 1}}
    assert all(result["agreed"] for result in ranks.run(2, jobs.train_small, level))
    assert all("replicas differ" in text for text in ranks.run(2, _corrupted, level))


def test_momentum_correction_trains(ranks: Ranks) -> None:
    level = {"level": "topk:0.05", "compress": {"momentum": 0.9, "warmup": 4}}
    results = ranks.run(2, jobs.train_small, level, 30)
    assert all(result["agreed"] for result in results)
    assert results[0]["losses"][-1] < results[0]["losses"][0]
    assert len(results[0]["summary"].levels) > 1, "the warm-up passes through several shares"


def test_low_rank_begins_dense_and_replicas_stay_equal(ranks: Ranks) -> None:
    results = ranks.run(3, jobs.train_small, {"level": "lowrank:2", "compress": {"warmup": 5}}, 12)
    assert all(result["agreed"] for result in results)
    assert set(results[0]["summary"].levels) == {"int4", "lowrank:2"}


@pytest.mark.parametrize("level", ["off", "int8", "topk:0.05+int8", "auto"])
def test_ranks_with_fewer_batches_join_the_others(ranks: Ranks, level: str) -> None:
    results = ranks.run(2, jobs.join_uneven, level)
    assert all(agreed for agreed, _ in results)
    if level == "topk:0.05+int8":
        sizes = [parameter.numel() for parameter in jobs.small_net().parameters()]
        assert all(sorted(left) == sorted(sizes) for _, left in results)


def test_a_rank_in_join_with_a_scaler_sets_its_residuals_aside_until_it_trains_again(ranks: Ranks) -> None:
    first, last = ranks.run(2, jobs.join_with_scaler, "topk:0.05+int8")
    assert first == [False, True, False, True]
    assert last == [False, False, False, False]


@pytest.mark.parametrize("level", ["off", "int8", "auto"])
def test_a_deleted_model_leaves_no_network_and_no_thread(ranks: Ranks, level: str) -> None:
    assert ranks.run(2, jobs.attach_and_delete, level) == [(0, [])] * 2


def test_the_residuals_of_a_checkpoint_are_sent_with_the_first_uncompressed_step(ranks: Ranks) -> None:
    for added, left in ranks.run(2, jobs.resume_without_compression):
        assert added == 1.0
        assert left == 0.0


def test_training_continues_after_closing(ranks: Ranks) -> None:
    assert ranks.run(2, jobs.train_after_closing) == [True, True]


@pytest.mark.parametrize(
    ("setting", "value"),
    [("observe.verify", 2), ("compress.chunk", 0.5), ("compress.prune", "zero"), ("compress.warmup", 5)],
)
def test_a_setting_that_differs_between_ranks_is_named_before_anything_is_sent(
    ranks: Ranks, setting: str, value: object
) -> None:
    section, name = setting.split(".")
    for error in ranks.run(2, jobs.attach_with, ["int8", {"level": "int8", section: {name: value}}]):
        assert f"{setting}: rank 0 has" in error


def test_a_cap_that_differs_between_ranks_is_named(ranks: Ranks) -> None:
    for error in ranks.run(2, jobs.attach_with, ["auto", {"level": "auto", "lossiest": "int4"}]):
        assert "lossiest: rank 0 has" in error


def test_a_second_configuration_is_refused(ranks: Ranks) -> None:
    for same, error in ranks.run(2, jobs.attach_twice):
        assert same
        assert "attached to this model already" in error


def test_pruning_follows_the_parameters_when_the_bucket_layout_changes(ranks: Ranks) -> None:
    for shares in ranks.run(2, jobs.pruned_shares):
        assert shares == pytest.approx([0.5] * 4, abs=0.01)


@pytest.mark.parametrize("between", ["none", "zeros", "kept"])
@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("level", ["topk:0.02", "lowrank:1"])
def test_the_residual_of_a_parameter_that_no_rank_uses_is_kept(
    ranks: Ranks, level: str, views: bool, between: str
) -> None:
    """DDP does not update such a parameter, even if its residual was sent."""
    for first, last in ranks.run(3, jobs.unused_after_one_step, level, between, views):
        assert first < 1e-5
        assert last < 1e-5


@pytest.mark.parametrize("world", [1, 3])
def test_off_with_two_optimizers_in_turn_is_plain_ddp_and_leaves_no_residual(ranks: Ranks, world: int) -> None:
    """DDP copies the gradient that a parameter still has into its bucket, even if no rank used the parameter."""
    plain = ranks.run(world, jobs.two_optimizers, None)
    for (expected, _), (gradients, left) in zip(plain, ranks.run(world, jobs.two_optimizers, "off"), strict=True):
        assert all(torch.equal(one, other) for one, other in zip(expected, gradients, strict=True))
        assert left == []
