"""Verdict: the first thing that a report, the dashboard and a summary say of a run. Pure.

One headline (was it faster, at equal accuracy, or did it fail), then where the time went, what changed and why, and
what to try next. With another run to compare with, the speed-up is measured: to the same accuracy or loss where both
were noted, else per step. Without one it is the cost model's prediction, and is called so.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from gradwire.observe.format import percent, seconds, span
from gradwire.observe.next_steps import next_steps
from gradwire.observe.outcome import RunOutcome
from gradwire.observe.progress import Progress, progress

Tone = Literal["good", "even", "bad", "open"]

# Ratios of times that count as equal: two runs of the same training differ by as much.
EVEN: Final = 1.05
# A run with fewer of the other's steps is not called less accurate.
ENOUGH_STEPS: Final = 0.95


class Verdict(msgspec.Struct, frozen=True):
    """`tone`: "good" (faster), "even", "bad" (failed, ruined, slower or less accurate), "open" (not known)."""

    tone: Tone
    headline: str
    # What the accuracy guard did; empty if nothing.
    warning: str = ""
    time: str = ""
    changed: str = ""
    next: tuple[str, ...] = ()


def judge(run: RunOutcome, base: RunOutcome | None = None) -> Verdict:
    """The verdict on a run, compared with `base` if given."""
    tone, headline = _headline(run, base)
    if run.status in ("running", "waiting") and headline:
        headline = f"so far: {headline}"
    compared = base is not None and comparable(run, base) == ""
    steps = next_steps(run, compared)
    headline = headline[0].upper() + headline[1:]
    return Verdict(tone, headline, run.guard, where_time_went(run), what_changed(run), steps)


def comparable(run: RunOutcome, base: RunOutcome) -> str:
    """Why the times of two runs cannot be compared; empty if they can."""
    if run.world_size != base.world_size:
        return f"{run.world_size} ranks against {base.world_size}"
    if run.parameters != base.parameters:
        return f"{run.parameters:,} parameters against {base.parameters:,}"
    if base.status == "failed" or base.ruin:
        return f"{base.name} failed or was ruined"
    return ""


def _headline(run: RunOutcome, base: RunOutcome | None) -> tuple[Tone, str]:
    if run.status == "failed":
        return "bad", f"FAILED: {run.failure}"
    if run.ruin:
        return "bad", f"RUINED: {run.ruin}"
    if not run.steps or run.split is None:
        return "open", "no step has been recorded"
    if base is None:
        return _alone(run)
    why_not = comparable(run, base)
    if why_not:
        return "open", f"not comparable with {base.name}: {why_not}"
    return _compared(run, base)


def _alone(run: RunOutcome) -> tuple[Tone, str]:
    """A single run: what the cost model predicts."""
    if run.uncompressed:
        who = f"as fast as plain DDP: {run.level} sent" if run.adaptive else "like plain DDP, this run sent"
        return "even", f"{who} the whole gradient in every step"
    if run.plain is None or run.split is None or run.split.seconds <= 0:
        return "open", "not known whether this is faster than plain DDP: that was neither measured nor predicted"
    ratio = run.plain / run.split.seconds
    said = f"{_faster(ratio)} plain DDP, as the cost model predicts ({seconds(run.plain)} a step, here "
    said += f"{seconds(run.split.seconds)}; not measured)"
    if ratio > EVEN and run.price is not None and run.price > 1.005:
        total = ratio / run.price
        said += f"; its levels need {percent(run.price - 1)} more steps (predicted), so {total:.2g}x to the same loss"
        ratio = total
    return _tone(ratio), said


def _compared(run: RunOutcome, base: RunOutcome) -> tuple[Tone, str]:
    """Two runs: to the same accuracy or loss where both noted it, else a step."""
    for name in ("accuracy", "loss"):
        found = progress(run, base, name)
        if found is not None:
            return _by_progress(found, run, base)
    assert run.split is not None
    if base.split is None or run.split.seconds <= 0:
        return "open", f"not comparable with {base.name}: it has no steps"
    ratio = base.split.seconds / run.split.seconds
    said = f"a step is {_faster(ratio)} in {base.name} ({seconds(run.split.seconds)} against "
    said += f"{seconds(base.split.seconds)}); whether accuracy is equal is not known: nothing was noted"
    return _tone(ratio) if ratio < 1 / EVEN else "open", said


def _by_progress(found: Progress, run: RunOutcome, base: RunOutcome) -> tuple[Tone, str]:
    ratio = found.base_time / found.time if found.time > 0 else 1.0
    times = f"{_clock(found.time)} against {_clock(found.base_time)}"
    if found.worse and run.steps < ENOUGH_STEPS * base.steps:
        said = f"{_faster(ratio)} {base.name} to {found.target} ({times}), but it made only {run.steps} of "
        return "open", f"{said}{base.steps} steps: how accurate it would have become is not known"
    if found.worse:
        said = f"LESS ACCURATE than {base.name}: {found.ends}; {_faster(ratio)} it to {found.target} ({times})"
        return "bad", said
    longer = run.steps * ENOUGH_STEPS > base.steps
    equal = "to the same" if found.better and longer else "at better" if found.better else "at equal"
    return _tone(ratio), f"{_faster(ratio)} {base.name} {equal} {found.name}: {times} to {found.target}; {found.ends}"


def _faster(ratio: float) -> str:
    """To be followed by the name of what was compared with."""
    if ratio >= EVEN:
        return f"{ratio:.3g}x faster than"
    return f"{1 / ratio:.3g}x slower than" if ratio <= 1 / EVEN else "as fast as"


def _clock(duration: float) -> str:
    """Two durations of a comparison must not round to the same minute."""
    return f"{duration:.0f} s" if 120 <= duration < 1200 else span(duration)


def _tone(ratio: float) -> Tone:
    return "good" if ratio >= EVEN else "bad" if ratio <= 1 / EVEN else "even"


def where_time_went(run: RunOutcome) -> str:
    """The parts of a mean step, as shares."""
    split = run.split
    if split is None or split.seconds <= 0:
        return ""
    whole = f"a mean {'round of local steps' if run.rounds else 'step'} takes {seconds(split.seconds)}"
    if not split.known:
        return f"{whole}; its parts were not recorded"
    named = (("computing", split.compute), ("waiting for the network", split.wire))
    more = (("encoding", split.encode), ("waiting for late ranks and the rest", split.wait))
    shares = sorted(((part / split.seconds, name) for name, part in (*named, *more)), reverse=True)
    return f"{whole}: {', '.join(f'{100 * share:.0f} % {name}' for share, name in shares if share >= 0.005)}"


def what_changed(run: RunOutcome) -> str:
    """Levels by time, the last decision with its reason, and the other things that gradwire did."""
    parts = [_levels(run)]
    if run.transport:
        parts.append(f"Gradients travel over {run.transport}")
    if run.rounds:
        parts.append(f"Synchronised {run.rounds}")
    return ". ".join(part for part in parts if part)


def _levels(run: RunOutcome) -> str:
    spent = run.level_seconds or {}
    whole = sum(spent.values())
    if not whole:
        return ""
    most = sorted(spent, key=spent.__getitem__, reverse=True)[:3]
    shares = ", ".join(f"{level} {100 * spent[level] / whole:.0f} %" for level in most)
    last = run.decision
    if not run.changes or last is None:
        why = f" ({last.reason})" if last else ""
        return f"the level was {most[0]} throughout{why}" if len(spent) == 1 else f"levels by time: {shares}"
    times = "once" if run.changes == 1 else f"{run.changes} times"
    return f"the level changed {times} (by time: {shares}); last at step {last.step}, {last.level}: {last.reason}"
