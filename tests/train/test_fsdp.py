"""FSDP2 integration: off is plain HSDP, compressed replicas agree, FSDP2's own switches keep their meaning."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gradwire.events import Attached, Event, LinksSensed, Stepped
from gradwire.observe.reader import read
from tests.train import sharded
from tests.train.ranks import Ranks
from tests.train.test_backwards import BLOCKS

USES = ["", "bfloat16", "float16", "hooks", "sum", "divisor", "no gradient sync", "no all-reduce", "sync twice"]


@pytest.mark.parametrize(("world", "sites"), [(2, 2), (3, 3), (4, 2)])
def test_off_is_plain_hsdp_bit_for_bit(ranks: Ranks, world: int, sites: int) -> None:
    # `off` asks the backend for the same average of the same buffer, in the same order.
    plain = ranks.run(world, sharded.train, None, "", 6, sites)
    off = ranks.run(world, sharded.train, "off", "", 6, sites)
    for one, other in zip(plain, off, strict=True):
        assert torch.equal(one["weights"], other["weights"])
        assert one["losses"] == other["losses"]
        assert other["summary"].levels.keys() == {"off"}


@pytest.mark.parametrize("level", ["int8", "topk:0.05+int8", "lowrank:2", "prune:0.5+int8"])
def test_replicas_are_identical_after_every_step_and_less_is_sent(ranks: Ranks, level: str) -> None:
    for result in ranks.run(4, sharded.train, level):
        assert result["agreed"]
        summary = result["summary"]
        assert summary.steps == 6
        assert summary.levels.keys() == {level}
        assert summary.wire_bytes < summary.plain_bytes


def test_with_plan_auto_replicas_stay_on_the_process_group(ranks: Ranks) -> None:
    for found in ranks.run(3, sharded.automatic):
        assert found == {"agreed": True, "opener": None, "kind": "group", "trees": []}


@pytest.mark.parametrize("world", [2, 4])
def test_int8_stays_close_to_plain_hsdp(ranks: Ranks, world: int) -> None:
    plain = ranks.run(world, sharded.train, None)
    compressed = ranks.run(world, sharded.train, "int8")
    for one, other in zip(plain, compressed, strict=True):
        torch.testing.assert_close(other["weights"], one["weights"], atol=2e-2, rtol=5e-2)
        assert not torch.equal(other["weights"], one["weights"])


@pytest.mark.parametrize("how", USES)
def test_what_fsdp_offers_around_the_hook_keeps_its_meaning(ranks: Ranks, how: str) -> None:
    # The same sums in another order (a divisor before instead of after, a partial mean added first): the last bits
    # of float32 may differ, and those of bfloat16, which has 8, and of float16.
    tolerance = 2e-2 if "float" in how else 1e-5
    plain, off, coarse = (ranks.run(2, sharded.train, level, how)[0] for level in (None, "off", "int8"))
    torch.testing.assert_close(off["weights"], plain["weights"], atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(coarse["weights"], plain["weights"], atol=5e-2, rtol=5e-2)
    if how in ("no gradient sync", "no all-reduce"):
        assert coarse["summary"].steps == 6, "a backward that does not synchronise is no step of gradwire's"


def test_torch_does_not_reduce_over_the_replicas_and_the_hook_does_not_block_backward(ranks: Ranks) -> None:
    for native, overlapped in ranks.run(4, sharded.count_all_reduces, "int8", ""):
        assert native == 0
        assert overlapped == {True}
    assert ranks.run(2, sharded.count_all_reduces, None, "")[0][0] > 0, "the count must include torch's own all-reduce"
    assert ranks.run(2, sharded.count_all_reduces, "int8", "sum")[0] == (0, {False}), "torch divides after the hook"
    assert ranks.run(2, sharded.count_all_reduces, "int8", "sync twice")[0] == (0, {True, False}), (
        "torch adds after the hook"
    )


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_backward_is_one_step_and_settles_once_with_every_unit_in_flight(
    ranks: Ranks, reentrant: bool
) -> None:
    plain = ranks.run(2, sharded.settles, None, reentrant)[0][2]
    for steps, in_flight, gradients in ranks.run(2, sharded.settles, "off", reentrant):
        assert (steps, in_flight) == (3, [BLOCKS] * 3)
        assert torch.equal(gradients, plain)


def test_residuals_are_named_by_parameter_and_shard(ranks: Ranks) -> None:
    for rank, result in enumerate(ranks.run(4, sharded.train, "int8", "", 2)):
        shard = rank % 2
        assert result["state"]["shard"] == [shard, 2]
        assert {f"{layer}.{kind}[{shard}/2]" for layer in (0, 2, 4) for kind in ("weight", "bias")} == set(
            result["state"]["residuals"]
        )
        assert any(residual.any() for residual in result["state"]["residuals"].values())


def test_a_checkpoint_resumes_and_one_of_another_shard_is_refused(ranks: Ranks) -> None:
    for whole, resumed, answer in ranks.run(4, sharded.resume, "topk:0.05+fp16"):
        torch.testing.assert_close(resumed, whole, atol=1e-2, rtol=1e-2)
        assert "shard 7 of 9" in answer


def test_a_state_of_another_shard_on_one_rank_is_a_configuration_error_on_all_its_replicas(ranks: Ranks) -> None:
    first, second, *others = ranks.run(4, sharded.load_another_shard)
    assert (first, others[0]) == ("loaded", "loaded"), "the ranks of shard 0 load it"
    for answer in (second, others[1]):
        assert answer.startswith("ConfigError: the shard of the state to load: rank 0 has 1 of 2, rank 1 has 0 of 2")


def test_another_number_of_sites_loads_all_residuals(ranks: Ranks) -> None:
    states = [result["state"] for result in ranks.run(2, sharded.train, "topk:0.05+fp16")]
    loaded = ranks.run(3, sharded.load_states, states)
    for name in states[0]["residuals"]:
        saved = sum(state["residuals"][name] for state in states) / 2
        now = sum(residuals[name] for residuals in loaded if name in residuals) / 3
        torch.testing.assert_close(now, saved)


def test_a_controller_decides_at_every_step(ranks: Ranks) -> None:
    for rank, result in enumerate(ranks.run(4, sharded.train, "auto", "", 8)):
        assert result["agreed"]
        assert result["summary"].steps == 8
        sensed = result["summary"].sensed
        # The first rank of the mesh asks the controller; pulses sent at a step are received at the next.
        assert (sensed is not None and sensed.step == 7) if rank == 0 else sensed is None


@pytest.mark.parametrize("settings", [{}, {"sync_every": 2}])
def test_the_shards_of_a_site_have_one_controller_because_they_share_its_uplink(
    ranks: Ranks, settings: dict[str, int]
) -> None:
    results = ranks.run(4, sharded.train_with_own_controllers, settings)
    levels, asked, _ = results[0]
    assert [one[0] for one in results] == [levels] * 4
    assert len(set(levels)) > 2, "the levels of no controller"
    assert asked
    assert {replicas for replicas, _ in asked} == {2}, "gradients are exchanged between two sites"
    assert [one[1] for one in results[1:]] == [[], [], []], "another rank asked its own controller"
    assert all(agreed for _, _, agreed in results)


def test_shards_with_different_settings_are_an_error_on_all_ranks(ranks: Ranks) -> None:
    for error in ranks.run(4, sharded.attach_with_a_level_for_each_shard):
        assert "level: rank 0 has auto, rank 1 has int8" in error


def test_the_ranks_of_a_mesh_may_be_some_of_the_jobs(ranks: Ranks) -> None:
    assert ranks.run(3, sharded.sum_over_some) == [0.0, 3.0, 3.0]


@pytest.mark.parametrize("level", ["auto", "int8"])
def test_a_recording_has_the_ranks_of_all_shards(ranks: Ranks, level: str, tmp_path: Path) -> None:
    ranks.run(4, sharded.train, {"level": level, "record": str(tmp_path)})
    recorded: dict[int, list[Event]] = {}
    for record in read(tmp_path):
        recorded.setdefault(record.rank, []).append(record.event)
    assert sorted(recorded) == [0, 1, 2, 3]
    for rank, events in recorded.items():
        attached = [(event.rank, event.world_size) for event in events if isinstance(event, Attached)]
        assert attached == [(rank, 4)]
        assert len({event.step for event in events if isinstance(event, Stepped)}) == 6
        sensed = [link for event in events if isinstance(event, LinksSensed) for link in event.links]
        assert {(link.source, link.destination) for link in sensed} <= {(rank, (rank + 2) % 4)}


def test_an_error_in_a_background_thread_reaches_the_training_loop_with_its_type(ranks: Ranks) -> None:
    assert ranks.run(2, sharded.fail_in_encoder) == ["LinkError at step 2", "MemoryError at step 2"]


def test_mistakes_are_named(ranks: Ranks) -> None:
    unwrapped, no_replicas, twice, planned = ranks.run(2, sharded.mistakes)[0]
    assert "not wrapped by FSDP2" in unwrapped
    assert "fully_shard(model, mesh=mesh)" in unwrapped
    assert "no replicate dimension" in no_replicas
    assert "attached to this model already" in twice
    assert "plan: 'star' cannot be used with FSDP2" in planned


def test_a_unit_with_unused_parameters_needs_a_setting_of_fsdp2(ranks: Ranks) -> None:
    assert "set_reduce_scatter_unused_params" in ranks.run(2, sharded.unused, False)[0]
    assert ranks.run(2, sharded.unused, True) == ["trained", "trained"]


def test_replicate_without_shards_works_too(ranks: Ranks) -> None:
    plain = ranks.run(2, sharded.replicate_only, None)
    for one, other in zip(plain, ranks.run(2, sharded.replicate_only, "off"), strict=True):
        assert torch.equal(one, other)
    compressed = ranks.run(2, sharded.replicate_only, "int8")
    assert torch.equal(compressed[0], compressed[1])
    torch.testing.assert_close(compressed[0], plain[0], atol=2e-2, rtol=5e-2)


@pytest.mark.parametrize("how", ["", "bfloat16"])
def test_a_step_that_a_scaler_skips_for_another_shard_changes_nothing(ranks: Ranks, how: str) -> None:
    """bfloat16 reductions are waited for within backward, one unit at a time."""
    without_overflow = ranks.run(4, sharded.scaled, "topk:0.02", how, False)
    with_overflow = ranks.run(4, sharded.scaled, "topk:0.02", how, True)
    for (one, _), (other, scale) in zip(without_overflow, with_overflow, strict=True):
        assert scale == 256.0
        assert torch.equal(one, other)
