"""`sync_every = "auto"`: changes between synchronous and local steps, against a reference in plain torch."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from tests.train import local_jobs, period_jobs
from tests.train.ranks import Ranks

SCRIPT = [("off", 1), ("off", 1), ("off", 3), ("off", 3), ("off", 2), ("off", 2), ("off", 1)]


@pytest.mark.parametrize("make", [local_jobs.sgd, local_jobs.adamw_in_groups])
def test_changes_between_synchronous_and_local_steps_equal_the_reference_in_plain_torch(
    ranks: Ranks, make: local_jobs.MakeOptimizer
) -> None:
    for ours, reference in ranks.run(2, period_jobs.both, SCRIPT, make):
        assert {1, 2, 3} <= set(ours["modes"])
        assert ours["modes"][0] == ours["modes"][-1] == 1
        assert torch.allclose(ours["weights"], reference, atol=1e-6)


@pytest.mark.parametrize("level", ["off", "int8", "topk:0.1+int8"])
def test_replicas_are_equal_whenever_steps_are_synchronous_and_at_every_end_of_a_round(
    ranks: Ranks, level: str
) -> None:
    script = [(level, 1), (level, 1), (level, 3), (level, 3), (level, 2), ("off", 1), (level, 1)]
    found = ranks.run(3, period_jobs.scripted, script)
    modes, agreed = found[0]["modes"], found[0]["agreed"]
    for ours in found:
        assert ours["modes"] == modes
        assert torch.equal(ours["weights"], found[0]["weights"])
    before = [1, *modes[:-1]]
    synchronous = [same for same, mode in zip(agreed, before, strict=True) if mode == 1]
    assert len(synchronous) >= 8
    assert all(synchronous)
    assert all(agreed[step] for step in range(len(modes)) if modes[step] != before[step])
    assert not all(agreed)


@pytest.mark.parametrize("last", ["off", "topk:0.05"])
def test_nothing_is_lost_when_steps_become_local_and_synchronous_again(ranks: Ranks, last: str) -> None:
    """Sparse gradients, then sparse weights, leave most in residuals; the end has the sum of all, also where the
    decision that ends local steps is not `off`."""
    sparse = "topk:0.05"
    script = [(sparse, 1)] * 4 + [(sparse, 3)] * 3 + [(last, 1), ("off", 1)]
    for found in ranks.run(2, period_jobs.conserved, script, 24):
        assert 3 in found["modes"]
        assert found["modes"][-1] == 1
        assert torch.allclose(found["weights"], found["expected"], atol=1e-4)


def test_rank_0_sees_the_divergence_and_the_steps_of_every_round(ranks: Ranks) -> None:
    facts = ranks.run(2, period_jobs.scripted, SCRIPT)[0]["facts"]
    rounds = [one for one in facts if one.divergence is not None]
    assert {one.divergence.steps for one in rounds} == {2, 3}
    assert all(one.divergence.own >= one.divergence.shared > 0 for one in rounds)
    assert all(after.steps in {1, 2, 3} for _, after in pairwise(facts))


def test_every_change_is_recorded_with_its_reason(ranks: Ranks) -> None:
    text = str(ranks.run(2, period_jobs.scripted, SCRIPT)[0]["summary"])
    assert "the test's script" in text


@pytest.mark.parametrize("at", [3, 9, 10])
def test_a_checkpoint_continues_in_the_mode_that_it_was_saved_in(ranks: Ranks, at: int) -> None:
    """After 3 steps they are synchronous, after 9 and 10 in the middle of a round."""
    for whole, again, modes in ranks.run(2, period_jobs.resumed, at):
        assert set(modes) == {1 if at == 3 else 4}
        assert at == 3 or torch.equal(whole, again)


@pytest.mark.parametrize("level", ["auto", "off"])
def test_on_loopback_training_stays_synchronous_and_off_equals_plain_ddp(ranks: Ranks, level: str) -> None:
    for ours, plain, every in ranks.run(2, period_jobs.unchosen, level):
        assert every == 1
        if level == "off":
            assert torch.equal(ours, plain)


@pytest.mark.parametrize("script", [[("int8", 1)], [("int8", 1), ("int8", 4)]])
def test_replicas_are_equal_after_detach_in_both_modes(ranks: Ranks, script: period_jobs.Script) -> None:
    for agreed in ranks.run(2, period_jobs.detached, script):
        assert all(agreed)


def test_a_loss_scaler_works_in_both_modes(ranks: Ranks) -> None:
    for modes, agreed in ranks.run(2, period_jobs.scaled):
        assert {1, 3} <= set(modes)
        assert agreed[-1]
