"""The verdict: measured against another run, predicted alone, and loud where a run failed or was ruined."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from gradwire.events import (
    Attached,
    Decided,
    Ended,
    Failed,
    Faulted,
    NonFinite,
    Noted,
    Opened,
    OuterStepped,
    Sensed,
    Stepped,
    Synchronised,
)
from gradwire.observe.health import STEPS
from gradwire.observe.next_steps import COMPARE, MOST
from gradwire.observe.outcome import RunOutcome, outcome_of, price_of
from gradwire.observe.progress import progress, smooth
from gradwire.observe.reader import Record
from gradwire.observe.state import RunState
from gradwire.observe.step_split import StepSplit
from gradwire.observe.summary import SummarySink
from gradwire.observe.verdict import judge

SPLIT = StepSplit(0.1, 0.06, 0.0, 0.04, 0.0)
PLAIN = RunOutcome("plain", "ended", 4, 1000, 100, StepSplit(0.2, 0.06, 0.0, 0.14, 0.0), level_seconds={"off": 20.0})
OURS = RunOutcome("ours", "ended", 4, 1000, 100, SPLIT, level="auto", level_seconds={"int8": 10.0})


def curve(step: float, *values: float) -> tuple[tuple[float, float], ...]:
    return tuple((step * (i + 1), value) for i, value in enumerate(values))


def test_faster_at_equal_accuracy_is_the_ratio_of_the_times_to_what_both_reached() -> None:
    base = replace(PLAIN, accuracies=curve(20, 0.5, 0.8, 0.90))
    run = replace(OURS, accuracies=curve(10, 0.5, 0.8, 0.899))
    found = judge(run, base)
    assert found.tone == "good"
    assert found.headline.startswith("2x faster than plain at equal accuracy: 30 s against 60 s to 89.90 %")


def test_faster_steps_do_not_hide_a_worse_result() -> None:
    base = replace(PLAIN, accuracies=curve(20, 0.5, 0.8, 0.92))
    found = judge(replace(OURS, accuracies=curve(10, 0.5, 0.7, 0.88)), base)
    assert found.tone == "bad"
    assert found.headline.startswith("LESS ACCURATE than plain: best accuracy 88.00 % against 92.00 %")


def test_a_run_that_made_fewer_steps_is_not_called_less_accurate() -> None:
    base = replace(PLAIN, accuracies=curve(20, 0.5, 0.8, 0.92))
    found = judge(replace(OURS, steps=60, accuracies=curve(10, 0.5, 0.7, 0.88)), base)
    assert found.tone == "open"
    assert "made only 60 of 100 steps" in found.headline


def test_a_run_that_made_more_steps_is_not_called_more_accurate() -> None:
    base = replace(PLAIN, accuracies=curve(20, 0.5, 0.8))
    run = replace(OURS, accuracies=curve(10, 0.5, 0.8, 0.9))
    assert judge(run, base).headline.startswith("2x faster than plain at better accuracy")
    assert judge(replace(run, steps=150), base).headline.startswith("2x faster than plain to the same accuracy")


def test_losses_of_batches_are_smoothed_before_they_are_compared() -> None:
    noisy = [3.0 - i / 100 + (0.5 if i % 2 else -0.5) for i in range(200)]
    means = [value for _, value in smooth(curve(1, *noisy))]
    assert max(abs(a - b) for a, b in pairwise(means)) < 0.2
    base, run = replace(PLAIN, losses=curve(2, *noisy)), replace(OURS, losses=curve(1, *noisy))
    found = progress(run, base, "loss")
    assert found is not None
    assert found.base_time / found.time == pytest.approx(2)
    assert not found.worse
    assert judge(run, base).headline.startswith("2x faster than plain at equal loss")


def test_without_notes_the_accuracy_is_said_to_be_unknown() -> None:
    found = judge(OURS, PLAIN)
    assert found.tone == "open"
    assert "2x faster than in plain" in found.headline
    assert "not known" in found.headline
    assert any("handle.note" in step for step in found.next)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"world_size": 8}, "4 ranks against 8"),
        ({"parameters": 7}, "1,000 parameters against 7"),
        ({"status": "failed", "failure": "x"}, "plain failed or was ruined"),
    ],
)
def test_runs_that_differ_are_not_compared(change: dict[str, object], why: str) -> None:
    found = judge(OURS, replace(PLAIN, **change))  # type: ignore[arg-type]
    assert found.tone == "open"
    assert why in found.headline
    assert COMPARE in found.next


def test_a_run_alone_is_predicted_and_says_how_to_measure() -> None:
    found = judge(replace(OURS, plain=0.25))
    assert found.tone == "good"
    assert found.headline.startswith(
        "2.5x faster than plain DDP, as the cost model predicts (250 ms a step, here 100 ms"
    )
    assert COMPARE in found.next
    unknown = judge(OURS)
    assert unknown.tone == "open"
    assert unknown.headline.startswith("Not known")


def test_a_run_that_sent_everything_says_so_instead_of_a_ratio() -> None:
    assert judge(PLAIN).headline == "Like plain DDP, this run sent the whole gradient in every step"
    chosen = judge(replace(PLAIN, level="auto", plain=0.25))
    assert chosen.headline == "As fast as plain DDP: auto sent the whole gradient in every step"
    assert judge(replace(OURS, rounds="every 20 steps")).time.startswith("a mean round of local steps takes")


def test_the_price_of_levels_is_taken_off_the_prediction() -> None:
    found = judge(replace(OURS, plain=0.2, price=1.25))
    assert "25 % more steps (predicted), so 1.6x to the same loss" in found.headline
    assert judge(replace(OURS, plain=0.11, price=1.3)).tone == "bad"
    assert price_of({"off": 1.0, "int8": 3.0}, {"int8": 1.2}) == pytest.approx(1.15)
    assert price_of({"int4": 5.0, "int8": 3.0}, {"int8": 1.2}) is None


def test_slower_is_said_as_plainly_as_faster() -> None:
    base = replace(PLAIN, accuracies=curve(10, 0.9))
    found = judge(replace(OURS, accuracies=curve(20, 0.9)), base)
    assert found.tone == "bad"
    assert found.headline.startswith("2x slower than plain at equal accuracy")


def state_of(*events: object, end: bool = True) -> RunState:
    state = RunState()
    first = [Opened(0.0, "gradwire-events", 1, 0, 1, 0.0), Attached(0.0, 0, 1, 1000, {"level": "auto"})]
    last = [Ended(99.0, 0)] if end else []
    for event in (*first, *events, *last):
        state.take(Record(0, event.at, event))  # type: ignore[attr-defined, arg-type]
    return state


def step(number: int, level: str = "int8") -> Stepped:
    return Stepped(0.1 * number, number, *SPLIT, 100, 50, 100, level)


def test_a_failed_run_looks_failed() -> None:
    state = state_of(step(0), Failed(0.2, 1, "LinkError: rank 1 (host b) did not answer"), end=False)
    found = judge(outcome_of("run", state), PLAIN)
    assert found.tone == "bad"
    assert found.headline == "FAILED: step 1, rank 0: LinkError: rank 1 (host b) did not answer"
    (step_next,) = found.next
    assert "troubleshooting" in step_next, "no advice on speed for a run that failed"


def test_a_killed_run_looks_failed() -> None:
    state = state_of(step(0), end=False)
    state.update_silence(1000.0, 0.1)
    assert judge(outcome_of("run", state)).headline.startswith("FAILED: after step 0 rank 0 stopped without an end")


def test_nan_in_every_step_is_a_ruined_run_and_a_skipped_step_is_not() -> None:
    one = state_of(*map(step, range(50)), NonFinite(2.0, 20, 0, 3))
    assert judge(outcome_of("run", one)).tone != "bad"
    broken = [NonFinite(0.1 * i, i, 0, 3) for i in range(50 - STEPS, 50)]
    every = judge(outcome_of("run", state_of(*map(step, range(50)), *broken)))
    assert every.tone == "bad"
    assert every.headline.startswith("RUINED: gradients have been NaN")


@pytest.mark.parametrize(
    ("notes", "said"),
    [
        ([Noted(1.0, 1, None, nonfinite=("loss",))], "NaN or infinite"),
        ([Noted(1.0, i, 1.0 + i / 10) for i in range(30)], "the noted loss rose from 1.2 to 3.7"),
        ([Noted(1.0, 1, accuracy=0.9), Noted(2.0, 2, accuracy=0.1)], "accuracy fell from 90.0 % to 10.0 %"),
    ],
)
def test_notes_show_a_ruined_run(notes: list[Noted], said: str) -> None:
    found = judge(outcome_of("run", state_of(step(0), *notes)), PLAIN)
    assert found.tone == "bad"
    assert found.headline.startswith("RUINED: ")
    assert said in found.headline


def test_a_loss_that_became_finite_again_is_not_ruined() -> None:
    notes = [Noted(1.0, 1, None, nonfinite=("loss",)), Noted(2.0, 2, 1.5)]
    assert judge(outcome_of("run", state_of(step(0), *notes))).tone != "bad"


def test_it_says_where_the_time_went_and_what_changed_and_why() -> None:
    decided = [Decided(0.0, 0, 0, "off", "not measured yet", 0), Decided(3.0, 30, 0, "int8", "20 Mbit/s", 1)]
    steps = [step(i, "off" if i < 30 else "int8") for i in range(120)]
    found = judge(outcome_of("run", state_of(*decided, *steps)))
    assert found.time == "a mean step takes 100 ms: 60 % computing, 40 % waiting for the network"
    assert found.changed == "the level changed once (by time: int8 75 %, off 25 %); last at step 30, int8: 20 Mbit/s"
    assert 1 <= len(found.next) <= MOST


def test_the_guards_acts_are_a_warning_with_its_advice() -> None:
    found = judge(outcome_of("run", state_of(step(0), Faulted(0.1, 0, "guard", "int4 harmed"))))
    assert "int4 harmed" in found.warning
    assert any("lossiest" in step for step in found.next)


def test_a_prediction_for_single_steps_is_not_used_for_rounds_of_local_steps() -> None:
    sensed = Sensed(0.1, 0, 0.01, 1e6, 0.0, 0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0.0, predicted_plain=0.5)
    outer = OuterStepped(0.1, 0, 20, 20, "steps", 1.0, 1.0, 0.5, 1.0, 0.1)
    assert outcome_of("run", state_of(step(0), sensed)).plain == 0.5
    assert outcome_of("run", state_of(step(0), sensed, outer)).plain is None


def test_a_summary_begins_with_the_verdict() -> None:
    sink = SummarySink()
    sensed = Sensed(0.1, 0, 0.01, 1e6, 0.0, 0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0.0, predicted_plain=0.3)
    bucket = Synchronised(0.1, 0, 0, "int8", 100, 50, 50, 0.1)
    for event in (Attached(0.0, 0, 4, 1000, {"level": "auto"}), step(0), bucket, sensed):
        sink.emit(event)
    lines = str(sink.summary()).splitlines()
    assert lines[1].startswith("  3x faster than plain DDP, as the cost model predicts")
    sink.emit(Failed(0.2, 1, "LinkError: gone"))
    assert str(sink.summary()).splitlines()[1] == "  FAILED: LinkError: gone"
