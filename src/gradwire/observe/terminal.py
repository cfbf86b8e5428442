"""Terminal: draws a RunState for a terminal. Pure: it reads no files and no clock.

Made for 80 columns; the parts of a step differ by pattern as well as by colour.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradwire.events import LinkSample
from gradwire.observe.format import clean, count, percent, rate, seconds, span, spark
from gradwire.observe.outcome import outcome_of
from gradwire.observe.state import RunState
from gradwire.observe.step_split import PARTS, StepSplit
from gradwire.observe.verdict import judge
from gradwire.units import Bytes

# part -> (pattern, colour)
PATTERNS: Final = {"compute": ("█", "green"), "encode": ("▓", "magenta"), "wire": ("▒", "yellow"), "wait": ("░", "red")}
TONES: Final = {"good": "bold green", "even": "bold", "bad": "bold red", "open": "bold"}
MOST_LINKS: Final = 6
MOST_DECISIONS: Final = 5
MOST_INCIDENTS: Final = 3
# Characters of one incident: enough for gradwire's longest errors.
MOST_DETAIL: Final = 1000
LABEL: Final = 10


def draw(state: RunState, width: int = 80) -> RenderableType:
    """The whole view."""
    if state.started is None:
        return Text("waiting for the first event", style="dim")
    rows: list[RenderableType] = [_title(state, width), *_progress(state, width), *_verdict(state, width)]
    rows += _guard(state, width)
    if state.steps:
        rows += [_step(state), *_bar(state.split, width), *_learning(state), *_network(state), _level(state)]
        rows += [*_price(state, width), *_rounds(state, width)]
    else:
        rows.append(Text("waiting for the first step", style="dim"))
    if state.links:
        rows.append(_links(state))
    if state.advice is not None:
        cap, gain = state.advice.bucket_cap_mb, state.advice.gain
        rows.append(_row("advice", Text(f"DDP(bucket_cap_mb={cap}) would save about {percent(gain)} of a step")))
    rows += [*_decisions(state, width), *_incidents(state, width)]
    return Group(*rows)


def _title(state: RunState, width: int) -> Text:
    left = Text.assemble(("gradwire ", "bold cyan"), (clean(state.run, 24) or "run", "bold"))
    left.append(f"  {state.world_size} ranks, {count(state.parameters)} parameters", "dim")
    total = "" if state.total_steps is None else f" of {state.total_steps}"
    over = state.status if state.status in ("ended", "failed") else ""
    right = f"step {state.step}{total}" + (f"  {over}" if over else "")
    left.append(" " * max(2, width - left.cell_len - len(right)))
    left.append(right, "bold red" if over == "failed" else "bold")
    return left


def _progress(state: RunState, width: int) -> list[Text]:
    if state.total_steps is None or state.total_steps <= 0:
        return [_row("time", Text(span(state.elapsed)))]
    share = min(1.0, state.step / state.total_steps)
    left = f", {span(state.time_left)} left" if state.status == "running" else ""
    label = f" {100 * share:3.0f} %  {span(state.elapsed)}{left}"
    length = max(10, width - LABEL - len(label))
    full = round(share * length)
    return [_row("progress", Text.assemble(("━" * full, "cyan"), ("─" * (length - full), "dim"), label))]


def _verdict(state: RunState, width: int) -> Iterable[Text]:
    """The headline; of a run that is over, also what to try next."""
    verdict = judge(outcome_of("", state))
    # The error itself is among the incidents, in full.
    headline = ": ".join(verdict.headline.split(": ")[:2]) if state.status == "failed" else verdict.headline
    rows = [("verdict", headline, TONES[verdict.tone])]
    if state.status in ("ended", "failed"):
        rows += [("or" if number else "next", step, "") for number, step in enumerate(verdict.next)]
    for label, text, style in rows:
        for index, line in enumerate(textwrap.wrap(text, max(20, width - LABEL))):
            yield _row("" if index else label, Text(line, style))


def _guard(state: RunState, width: int) -> Iterable[Text]:
    """What the accuracy guard did. It stays at the top: an incident would leave the list with the next ones."""
    lines = textwrap.wrap(state.guard.verdict, max(20, width - LABEL))
    for index, line in enumerate(lines):
        yield _row("" if index else "guard", Text(line, "bold red"))


def _step(state: RunState) -> Text:
    now = state.split
    took = seconds(None if now is None else now.seconds)
    text = Text.assemble((f"{took:>12} ", "bold"), (spark(state.recent, 20), "cyan"))
    text.append(f"  median {seconds(state.spread.quantile(0.5))}, 99 % < {seconds(state.spread.quantile(0.99))}", "dim")
    return _row("step", text)


def _bar(split: StepSplit | None, width: int) -> list[RenderableType]:
    """The parts of the mean step; nothing if only its whole time is known."""
    if split is None or not split.known:
        return []
    spent = {part: max(0.0, getattr(split, part)) for part in PARTS}
    whole = sum(spent.values()) or 1.0
    length = max(10, width - LABEL)
    bar, legend, drawn = Text(), Text(), 0.0
    for part, value in spent.items():
        pattern, color = PATTERNS[part]
        first, drawn = round(drawn / whole * length), drawn + value
        bar.append(pattern * (round(drawn / whole * length) - first), color)
        legend.append_text(Text.assemble((pattern, color), f" {part} {seconds(value)}  "))
    return [_row("", bar), _row("", legend)]


def _learning(state: RunState) -> list[Text]:
    """The last noted loss and accuracy."""
    losses = [note.noted.loss for note in state.notes if note.noted.loss is not None]
    accuracies = [note.noted.accuracy for note in state.notes if note.noted.accuracy is not None]
    rows = [("loss", f"{state.noted('loss'):.4g}", losses)] if losses else []
    rows += [("accuracy", percent(state.noted("accuracy")), accuracies)] if accuracies else []
    return [_row(name, Text.assemble((f"{now:>12} ", "bold"), (spark(past, 20), "cyan"))) for name, now, past in rows]


def _network(state: RunState) -> list[Text]:
    sensed = state.sensed
    if sensed is None:
        return []
    text = Text.assemble((f"{rate(sensed.bandwidth):>12} ", "bold"), (spark(state.recent_rates, 20), "cyan"))
    text.append(f"  round trip {seconds(sensed.rtprop)}", "dim")
    if sensed.queueing > 0.001:
        text.append(f" + {seconds(sensed.queueing)} queued", "dim")
    if state.chosen is not None:
        text.append(f"\n{'':{LABEL}}over {state.chosen.transport}: {clean(state.chosen.reason, 120)}", "dim")
    return [_row("network", text)]


def _level(state: RunState) -> Text:
    wire, plain = state.wire_bytes, state.plain_bytes
    text = Text.assemble((clean(state.level, 24) or "off", "bold green"))
    per_step = Bytes(wire // max(1, sum(rank.steps for rank in state.ranks.values())))
    text.append(f"  {per_step} per rank and step")
    if wire:
        text.append(f", {plain / wire:.3g}x less than plain DDP")
    faster = state.predicted_speedup
    if faster is not None:
        text.append(
            f"\n{'':{LABEL}}plain DDP would now take {faster:.2f}x as long (predicted by the cost model)", "dim"
        )
    return _row("level", text)


def _price(state: RunState, width: int) -> Iterable[Text]:
    """What the level costs in steps."""
    lines = textwrap.wrap(state.prices.sentence(state.level), max(20, width - LABEL))
    for index, line in enumerate(lines):
        yield _row("" if index else "price", Text(line, "dim"))


def _rounds(state: RunState, width: int) -> list[RenderableType]:
    """Local steps: the alignment of replicas over the last outer steps, and a sentence."""
    if not state.rounds.count:
        return []
    lines = textwrap.wrap(state.rounds.headline, max(20, width - LABEL))
    rows: list[RenderableType] = [_row("" if index else "rounds", Text(line)) for index, line in enumerate(lines)]
    if len(state.rounds.alignments) > 1:
        shape = spark(state.rounds.alignments, 20)
        rows.append(_row("", Text.assemble(("alignment    ", "dim"), (shape, "cyan"))))
    return rows


def _links(state: RunState) -> Table:
    """The worst links: slowest first if rates are known, otherwise longest round trip first."""
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    for name, right in (
        ("links", False),
        ("rate", True),
        ("", False),
        ("round trip", True),
        ("", False),
        ("loss", True),
    ):
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    ordered = sorted(state.links.values(), key=_badness)
    for link in ordered[:MOST_LINKS]:
        key = (link.source, link.destination)
        table.add_row(
            f"{link.source} → {link.destination}",
            rate(link.rate),
            Text(spark(state.rates.get(key, ()), 12), "cyan"),
            seconds(link.rtt),
            Text(spark(state.trips.get(key, ()), 12), "cyan"),
            percent(link.loss),
        )
    if len(ordered) > MOST_LINKS:
        table.add_row(Text(f"and {len(ordered) - MOST_LINKS} better links", "dim"))
    return table


def _badness(link: LinkSample) -> tuple[float, float]:
    return (link.rate if link.rate is not None else float("inf"), -(link.rtt or 0.0))


def _decisions(state: RunState, width: int) -> Iterable[Text]:
    for number, (_, decision) in enumerate(list(state.decisions)[-MOST_DECISIONS:][::-1]):
        text = Text.assemble(
            (f"step {decision.step:<6} ", "dim"), (clean(decision.level, 20), "bold" if not number else "")
        )
        text.append(f"  {clean(decision.reason, 300)}", "" if not number else "dim")
        text.truncate(2 * (width - LABEL), overflow="ellipsis")
        yield _row("decisions" if not number else "", _indent(text, width - LABEL))


def _indent(text: Text, width: int) -> Text:
    """Wrap a long sentence once and indent its second line."""
    if text.cell_len <= width:
        return text
    cut = text.plain.rfind(" ", 0, width)
    cut = cut if cut > width // 2 else width
    first, rest = text[:cut], text[cut:]
    rest = Text(" " * (LABEL + 12)).append_text(rest[1:] if rest.plain.startswith(" ") else rest)
    rest.truncate(width + LABEL, overflow="ellipsis")
    return first.append("\n").append_text(rest)


def _incidents(state: RunState, width: int) -> Iterable[Text]:
    others = [incident for incident in state.incidents if incident.kind != "guard"]  # `_guard` shows those
    for number, incident in enumerate(others[-MOST_INCIDENTS:][::-1]):
        text = f"step {incident.step:<6} {incident.who}: {clean(incident.detail, MOST_DETAIL)}"
        lines = textwrap.wrap(text, max(20, width - LABEL), subsequent_indent=" " * 12)
        for index, line in enumerate(lines):
            yield _row("incidents" if not number and not index else "", Text(line, "red"))
    if state.status == "failed" and state.missing:
        killed = ", ".join(map(str, state.missing))
        yield _row("lost", Text(f"rank {killed}: recorded neither an end nor a failure", "red"))
    if state.dropped:
        yield _row("recorder", Text(f"{state.dropped} events were dropped", "yellow"))


def _row(label: str, text: Text) -> Text:
    return Text.assemble((f"{label:<{LABEL}}", "dim")).append_text(text)
