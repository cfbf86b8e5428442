"""Next steps: what a user can try after a run, most useful first. Pure; each rule is a line of RULES."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gradwire.observe.guard_acts import ADVICE
from gradwire.observe.outcome import RunOutcome
from gradwire.observe.step_split import StepSplit

MOST: Final = 3
# Shares of a step from which a part is worth an advice (chosen, not measured).
MUCH_WIRE: Final = 0.25
MUCH_WAIT: Final = 0.2
MUCH_ENCODE: Final = 0.15

COMPARE: Final = (
    "to measure the speed-up, record the same training once with GRADWIRE_LEVEL=off and compare: "
    "gradwire report RUN-WITH-OFF THIS-RUN"
)


def next_steps(run: RunOutcome, compared: bool) -> tuple[str, ...]:
    """At most MOST sentences; `compared` if the verdict rests on another run. What went wrong comes before speed."""
    wrong = run.status == "failed" or run.ruin
    found = (rule(run, compared) for rule in (FAULT_RULES if wrong else RULES))
    return tuple(dict.fromkeys(sentence for sentence in found if sentence))[:MOST]


def _after_failure(run: RunOutcome, _: bool) -> str:
    if run.status != "failed":
        return ""
    return (
        "look the error up in docs/howto/troubleshooting.md; measure the network between the ranks with "
        "torchrun ... -m gradwire doctor; docs/howto/faults.md says how training can continue without a lost rank"
    )


def _after_ruin(run: RunOutcome, _: bool) -> str:
    if not run.ruin:
        return ""
    if run.uncompressed:
        return (
            "the gradient was not compressed: lower the learning rate, or look for the cause in the data and the model"
        )
    return (
        "repeat the first steps with GRADWIRE_LEVEL=off: if training is ruined there too, compression is not the "
        'cause; if not, set lossiest="int4" and report it with the recording'
    )


def _after_guard(run: RunOutcome, _: bool) -> str:
    return ADVICE if run.guard else ""


def _try_auto(run: RunOutcome, _: bool) -> str:
    if not run.uncompressed or run.adaptive or _share(run, "wire") < MUCH_WIRE:
        return ""
    return 'gradwire.attach(model) (level "auto") compresses where that saves time'


def _less_waiting(run: RunOutcome, _: bool) -> str:
    """Compressed already, and the network is still a large part."""
    if run.uncompressed or run.rounds or _share(run, "wire") < MUCH_WIRE:
        return ""
    if run.adaptive:
        return (
            "steps still wait for the network: extra_steps=0.5 allows lossier levels, "
            'attach(model, optimizer=opt, sync_every="auto") synchronises less often (docs/howto/local-steps.md)'
        )
    return 'steps still wait for the network: level "auto" chooses a level by measured steps'


def _late_ranks(run: RunOutcome, _: bool) -> str:
    if run.rounds or _share(run, "wait") < MUCH_WAIT:
        return ""
    return (
        "ranks wait for slower ones: gradwire watch names them; attach(model, optimizer=opt, sync_seconds=30) lets "
        "each rank make the steps that it can"
    )


def _dear_encoding(run: RunOutcome, _: bool) -> str:
    if _share(run, "encode") < MUCH_ENCODE:
        return ""
    return "encoding is a large part of a step: give the ranks more cores, or compare with int8, the cheapest level"


def _nothing_to_gain(run: RunOutcome, _: bool) -> str:
    if run.status == "failed" or run.split is None or not run.split.known or _share(run, "compute") < 0.9:
        return ""
    return "nothing: computing takes nearly all of a step, so a faster network would not help either"


def _bucket_advice(run: RunOutcome, _: bool) -> str:
    return run.advice


def _measure(run: RunOutcome, compared: bool) -> str:
    return COMPARE if not compared and not run.uncompressed and run.status != "failed" else ""


def _note(run: RunOutcome, _: bool) -> str:
    if run.losses or run.accuracies:
        return ""
    return "handle.note(loss, accuracy=...) lets the report compare accuracy, and the accuracy guard see harm"


Rule = Callable[[RunOutcome, bool], str]
FAULT_RULES: Final[tuple[Rule, ...]] = (_after_failure, _after_ruin, _after_guard)
RULES: Final[tuple[Rule, ...]] = (
    _after_guard,
    _try_auto,
    _less_waiting,
    _late_ranks,
    _dear_encoding,
    _nothing_to_gain,
    _bucket_advice,
    _measure,
    _note,
)


def _share(run: RunOutcome, part: str) -> float:
    split: StepSplit | None = run.split
    if split is None or not split.known or split.seconds <= 0:
        return 0.0
    return float(getattr(split, part)) / split.seconds
