"""The arithmetic of benchmarks/lossiness.py: slowdowns, prices and the page."""

from __future__ import annotations

import math

import pytest

import lossiness
from gradwire.level import Level
from harness.wide_tasks import sized_task


def falling(rate: float, steps: int = 400) -> list[float]:
    return [1.0 + 2.0 * (rate * step) ** -0.4 for step in range(1, steps + 1)]


def test_half_the_rate_takes_twice_the_steps() -> None:
    plain = falling(0.02)
    assert lossiness.slowdown(plain, falling(0.01)) == pytest.approx(2.0, rel=0.05)
    assert lossiness.slowdown(plain, plain) == 1.0
    assert math.isnan(lossiness.slowdown(plain, falling(0.03))), "never that low without compression"
    assert math.isinf(lossiness.slowdown(plain, [*plain[:10], math.nan]))


def test_the_price_follows_energy_and_optimizer() -> None:
    tenth = Level.parse("topk:0.1+int8")
    adam, sgd = (lossiness.price(job, tenth, 0.5) for job in ("gpt:adamw:0.001", "gpt:sgd:0.1:0.9"))
    assert adam > sgd > lossiness.price("gpt:sgd:0.1:0.9", tenth, 0.9) > 1.01
    assert lossiness.price("gpt:adamw:0.001", Level.parse("int4"), 0.5) < 1.05, "of a format, not of its energy"


def test_the_price_of_low_rank_follows_from_what_waits_whatever_the_rank() -> None:
    little, much = (lossiness.price("gpt:adamw:0.001", Level.parse("lowrank:32+int4"), kept) for kept in (0.9, 0.2))
    assert little < 1.01
    assert much > 1.3
    assert much == lossiness.price("gpt:adamw:0.001", Level.parse("lowrank:4"), 0.2)


def test_wide_tasks_have_the_width_batch_and_workers_of_their_names() -> None:
    wide, own = sized_task("mlp-48b3x4", None), sized_task("mlp", None)
    assert next(wide.task.module().parameters()).shape[0] == 48
    assert len(next(wide.task.batches(1, 0, 4))[0]) == 3
    assert (wide.workers, own.workers) == (4, 2)
    regression = sized_task("regression-16b5", None).task
    inputs, outputs = next(regression.batches(1, 0, 2))
    assert regression.module()(inputs).shape == outputs.shape


def test_a_run_measures_and_its_row_says_so(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(lossiness, "RESULTS", tmp_path)
    losses, kept = lossiness.train("mlp:sgd:0.05:0.9", "topk:0.1+int8", 1, 6, None)
    assert len(losses) == 6
    assert 0.1 < kept < 1.0
    run = lossiness.Run("mlp:sgd:0.05:0.9", "topk:0.1+int8", 1, 6, losses[-1], kept, math.nan)
    lossiness.save([run])
    assert lossiness.load()[0].level == run.level
    assert f"| topk:0.1+int8 | 6 | {losses[-1]:.3f} | {kept:.3f} | - |" in (tmp_path / "lossiness.md").read_text()
