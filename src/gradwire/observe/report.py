"""Report: one or several runs as a self-contained HTML page, as Markdown or as JSON.

The page makes no external requests: plots are inline SVG, styles are inline, there is no script, and its content
security policy forbids the rest. Every string from a recording is escaped.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

import msgspec

from gradwire.observe.files import recording
from gradwire.observe.format import clean, percent, rate, seconds, span
from gradwire.observe.level_prices import more
from gradwire.observe.local_rounds import steps_by_rank
from gradwire.observe.outcome import outcome_of
from gradwire.observe.plot import Line, line_plot, split_bars
from gradwire.observe.reader import Damage, read, touched
from gradwire.observe.run_facts import DecisionFact, PriceFact, RoundFacts, RunFacts, facts, targets_for
from gradwire.observe.state import RunState
from gradwire.observe.step_split import PARTS
from gradwire.units import Bytes

MOST_DECISIONS: Final = 50
# Characters of one incident: enough for gradwire's longest errors.
MOST_DETAIL: Final = 1000
STYLE: Final = """
:root{--ink:#1c2330;--dim:#657085;--page:#fff;--card:#f6f7f9;--rule:#dde1e8;color-scheme:light dark;
--bad:#c0322b;--s0:#2563eb;--s1:#d9480f;--s2:#0f9d58;--s3:#9333ea;--s4:#b8860b;--s5:#0e7490;--s6:#be185d;--s7:#4b5563}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ef;--dim:#98a2b3;--page:#12161d;--card:#1a2029;--rule:#2c3542;
--bad:#f0837c;--s0:#6ea8fe;--s1:#ff9a5c;--s2:#4ade80;--s3:#c99bff;--s4:#e8c25a;--s5:#5cc8dd;--s6:#f78fb8;--s7:#aab3c2}}
*{box-sizing:border-box}body{margin:0 auto;max-width:1340px;padding:28px 20px 60px;background:var(--page);
color:var(--ink);font:15px/1.5 system-ui,sans-serif}h1{font-size:24px;margin:0}h2{font-size:16px;margin:0 0 8px}
p{margin:6px 0}.dim,.none{color:var(--dim)}.grid2{display:grid;gap:16px;margin-top:16px;
grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr))}
section{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:16px;min-width:0}
.wide{margin-top:16px;overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:5px 10px;border-bottom:1px solid var(--rule);vertical-align:top}
th:first-child,td:first-child,td.text,th.text{text-align:left}th{color:var(--dim);font-weight:600}
tr:last-child td{border-bottom:0}svg{width:100%;height:auto;display:block}
svg text{fill:var(--dim);font:11px system-ui,sans-serif}
.line{fill:none;stroke-width:1.6}.grid{stroke:var(--rule)}.p0{fill:var(--s2)}.p1{fill:var(--s3)}.p2{fill:var(--s4)}
.p3{fill:var(--s1)}.key{display:inline-block;width:11px;height:11px;border-radius:3px;margin:0 5px 0 12px}
.key:first-child{margin-left:0}pre{white-space:pre-wrap;word-break:break-word;font-size:12px}.warn{color:var(--s1)}
.verdict{border-left:5px solid var(--dim)}.verdict.good{border-left-color:var(--s2)}
.verdict.bad{border-left-color:var(--bad)}
.verdict .head{font-size:19px;font-weight:600;line-height:1.35;margin:0 0 8px;overflow-wrap:anywhere}
.verdict.bad .head{color:var(--bad)}.verdict p.dim{margin:0}
dl{margin:0;display:grid;grid-template-columns:max-content 1fr;gap:4px 14px}dt{color:var(--dim)}
dd{margin:0;overflow-wrap:anywhere}@media(max-width:640px){dl{grid-template-columns:1fr}}
"""
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """A recording's state and facts."""

    state: RunState
    facts: RunFacts


def load(paths: Sequence[str | Path], accuracy: Sequence[float] = ()) -> list[ReportedRun]:
    """Read each recording once. A name that occurs twice gets a number."""
    loaded: list[tuple[str, RunState, Damage]] = []
    for path in paths:
        state, damage = RunState(), Damage()
        for record in read(path, damage):
            state.take(record)
        state.update_silence(time.time(), max(map(touched, recording(path)), default=0.0))
        name = clean(Path(path).resolve().name.split(".jsonl")[0], 40)
        taken = sum(other == name or other.startswith(f"{name} (") for other, _, _ in loaded)
        loaded.append((f"{name} ({taken + 1})" if taken else name, state, damage))
    targets = tuple(accuracy) or targets_for([state for _, state, _ in loaded])
    base = outcome_of(*loaded[0][:2])
    return [
        ReportedRun(state, facts(name, state, targets, clean(str(damage)), base if number else None))
        for number, (name, state, damage) in enumerate(loaded)
    ]


def to_json(runs: Sequence[ReportedRun]) -> str:
    body = msgspec.json.encode({"report": 1, "runs": [run.facts for run in runs]})
    return msgspec.json.format(body, indent=2).decode() + "\n"


def to_markdown(runs: Sequence[ReportedRun]) -> str:
    """Tables that can be pasted into an issue."""
    head, *rows = table(runs)
    verdicts = [line for run in _by_interest(runs) for line in _md_verdict(run, runs)]
    lines = ["# gradwire report", "", *verdicts, _md(head), _md(["---"] + ["---:"] * (len(head) - 1)), *map(_md, rows)]
    for run in runs:
        lines += ["", f"## {_md_text(run.facts.name)}: decisions", ""]
        lines += [f"- step {d.step}: **{_md_text(d.level)}**: {_md_text(d.reason)}" for d in _last(run)]
        if run.facts.prices:
            lines += ["", f"## {_md_text(run.facts.name)}: what levels cost in steps", ""]
            lines += [f"- {_md_text(price.sentence)}" for price in run.facts.prices.values()]
        if run.state.incidents:
            lines += ["", f"## {_md_text(run.facts.name)}: incidents", ""]
        for one in list(run.state.incidents)[-MOST_DECISIONS:]:
            lines.append(f"- step {one.step}, {one.who}: {_md_text(clean(one.detail, MOST_DETAIL))}")
    lines += [f"\n> {_md_text(run.facts.name)}: {_md_text(run.facts.damage)}" for run in runs if run.facts.damage]
    return "\n".join(lines) + "\n"


def to_html(runs: Sequence[ReportedRun]) -> str:
    """The HTML page."""
    title = "gradwire report: " + ", ".join(run.facts.name for run in runs)
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="dim">{_legend(runs)}</p>',
        *(
            f'<p class="warn">{escape(run.facts.name)}: {escape(run.facts.damage)}</p>'
            for run in runs
            if run.facts.damage
        ),
        *(_html_verdict(run, runs) for run in _by_interest(runs)),
        f'<section class="wide"><h2>Summary</h2>{_html_table(table(runs))}</section>',
        f'<div class="grid2">{"".join(plots(runs))}</div>',
        *map(_decisions, runs),
        *map(_details, runs),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def table(runs: Sequence[ReportedRun]) -> list[list[str]]:
    """Rows of text, the head first; one column per run."""
    every = [run.facts for run in runs]
    base = every[0].step_mean
    rows = [["", *(run.name for run in every)]]
    rows.append(["status", *(run.status for run in every)])
    rows.append(["ranks", *(str(run.world_size) for run in every)])
    rows.append(["steps", *(str(run.steps) for run in every)])
    rows.append(["time", *(span(run.elapsed) for run in every)])
    rows.append(["step, mean", *(seconds(run.step_mean) for run in every)])
    for label in every[0].step_quantiles:
        rows.append([f"step, {label}", *(seconds(run.step_quantiles[label]) for run in every)])
    if len(every) > 1:
        rows.append(
            [
                "speed-up over the first run",
                *(f"{base / run.step_mean:.2f}x" if run.step_mean else "-" for run in every),
            ]
        )
    rows.append(["sent by all ranks", *(str(Bytes(run.wire_bytes)) for run in every)])
    rows.append(["plain DDP would send", *(str(Bytes(run.plain_bytes)) for run in every)])
    rows.append(["reduction", *(f"{run.saved:.3g}x" for run in every)])
    rows.append(["level changes", *(str(run.changes) for run in every)])
    if any(run.best_accuracy is not None for run in every):
        rows.append(
            ["best accuracy", *("-" if (a := run.best_accuracy) is None else f"{100 * a:.2f} %" for run in every)]
        )
    for target in every[0].reached:
        rows.append([f"time to {100 * float(target):g} %", *(span(run.reached[target]) for run in every)])
    rows.append(["bandwidth, median", *(rate(run.bandwidth.get("median")) for run in every)])
    rows.append(["round trip, median", *(seconds(run.rtt.get("median")) for run in every)])
    if any(run.transport for run in every):
        rows.append(["lost, not retransmitted", *(_missing(run) for run in every)])
    if any(run.rounds for run in every):
        rows += _round_rows(every)
    if any(run.guard_acts for run in every):
        rows.append(["times that compression harmed training", *(str(run.guard_acts) for run in every)])
    rows.append(["faults", *(_counted(run.faults) for run in every)])
    return rows


def _round_rows(every: Sequence[RunFacts]) -> list[list[str]]:
    """Local steps; a run without them has none."""
    rounds = [run.rounds for run in every]
    return [
        ["local steps between outer steps", *(_length(one) if one else "none" for one in rounds)],
        ["outer steps", *(str(one.outer_steps) if one else "-" for one in rounds)],
        ["alignment of replicas, median", *(_median(one.alignment) if one else "-" for one in rounds)],
        ["pseudo-gradient, median norm", *(_median(one.norm) if one else "-" for one in rounds)],
        ["outer step, median norm", *(_median(one.outer_norm) if one else "-" for one in rounds)],
        ["waited for outer exchanges", *(seconds(one.waited) if one else "-" for one in rounds)],
        *(_timed_rows(rounds) if any(one and one.sync_seconds for one in rounds) else []),
    ]


def _length(rounds: RoundFacts) -> str:
    return f"those of {rounds.sync_seconds:g} s" if rounds.sync_seconds else str(rounds.sync_every)


def _timed_rows(rounds: Sequence[RoundFacts | None]) -> list[list[str]]:
    """Rounds by time; those of a number of steps have none."""
    timed = [one if one and one.sync_seconds else None for one in rounds]
    return [
        ["steps by rank in the last round", *(steps_by_rank(one.rank_steps) if one else "-" for one in timed)],
        ["waited for slower ranks", *(seconds(one.rank_wait) if one else "-" for one in timed)],
    ]


def _median(extent: dict[str, float]) -> str:
    return _plain(extent["median"]) if extent else "-"


def plots(runs: Sequence[ReportedRun]) -> list[str]:
    """One section of the page per plot."""
    shown = [
        _section("Accuracy over time", line_plot(_lines(runs, "accuracy"), span, _whole_percent, "accuracy over time")),
        _section("Step time", line_plot(_lines(runs, "seconds"), span, seconds, "step time over time")),
        _section(
            "Step-time distribution",
            line_plot(_cdf(runs), seconds, _whole_percent, "share of steps below a time", clock=False),
        ),
        _section("Parts of a step", _split(runs) + _parts_key()),
        _section(
            "Network: delivery rate of the group",
            line_plot(_lines(runs, "bandwidth"), span, rate, "bandwidth over time"),
        ),
        _section("Network: round trip", line_plot(_lines(runs, "rtt"), span, seconds, "round trip over time")),
        _section("Sent per rank and step", line_plot(_lines(runs, "wire_bytes"), span, _bytes, "bytes over time")),
        _section("Residual energy", line_plot(_lines(runs, "residual"), span, _plain, "residual energy over time")),
    ]
    if any(run.facts.rounds for run in runs):
        aligned = line_plot(_lines(runs, "alignment"), span, _plain, "alignment of replicas over time")
        shown.append(_section("Local steps: alignment of replicas", aligned))
        moved = line_plot(_lines(runs, "outer_norm"), span, _plain, "norm of the outer step over time")
        shown.append(_section("Local steps: norm of the outer step", moved))
    return shown


def _lines(runs: Sequence[ReportedRun], name: str) -> list[Line]:
    found = []
    for color, run in enumerate(runs):
        series, start = run.state.series.get(name), run.state.started or 0.0
        found.append(Line(run.facts.name, [(at - start, value) for at, value in series or ()], color))
    return found


def _cdf(runs: Sequence[ReportedRun]) -> list[Line]:
    """Share of steps (y) that took less than a time (x); the slowest half per cent is not shown."""
    found = []
    for color, run in enumerate(runs):
        seen, points = 0, []
        for low, high, count in run.state.spread.bins():
            points.append((low, seen / run.state.spread.count))
            seen += count
            points.append((high, seen / run.state.spread.count))
            if seen >= 0.995 * run.state.spread.count:
                break
        found.append(Line(run.facts.name, points, color))
    return found


def _split(runs: Sequence[ReportedRun]) -> str:
    rows = [(run.facts.name, [(part, run.facts.split.get(part, 0.0)) for part in PARTS]) for run in runs]
    return split_bars(rows, seconds, "mean step split into compute, encode, wire and wait")


def _parts_key() -> str:
    keys = (
        f'<span class="key" style="background:var(--s{c})"></span>{p}' for c, p in zip((2, 3, 4, 1), PARTS, strict=True)
    )
    return f'<p class="dim">{"".join(keys)}</p>'


def _legend(runs: Sequence[ReportedRun]) -> str:
    keys = (
        f'<span class="key" style="background:var(--s{color % 8})"></span>{escape(run.facts.name)}'
        for color, run in enumerate(runs)
    )
    return "".join(keys)


def _decisions(run: ReportedRun) -> str:
    rows = [["after", "step", "level", "reason"]]
    rows += [[span(d.elapsed), str(d.step), clean(d.level, 60), clean(d.reason, 400)] for d in _last(run)]
    limit = f" (the last {MOST_DECISIONS})" if len(run.facts.decisions) > MOST_DECISIONS else ""
    name = escape(run.facts.name)
    return f'<section class="wide"><h2>Decisions of {name}{limit}</h2>{_html_table(rows, text_from=2)}</section>'


def _details(run: ReportedRun) -> str:
    """Levels, incidents and configuration."""
    levels = [["level", "steps", "time", "more steps, predicted", "realised"]]
    levels += [
        [clean(k, 60), str(n), span(run.facts.level_seconds[k]), *_price_cells(run.facts.prices.get(k))]
        for k, n in run.facts.levels.items()
    ]
    incidents = [["after", "rank", "step", "kind", "detail"]]
    start = run.state.started or 0.0
    for one in list(run.state.incidents)[-MOST_DECISIONS:]:
        who = ", ".join(map(str, one.ranks or (one.rank,)))
        row = [span(one.time - start), who, str(one.step), clean(one.kind, 40), clean(one.detail, MOST_DETAIL)]
        incidents.append(row)
    config = msgspec.json.format(msgspec.json.encode(run.facts.config), indent=2).decode()[:20_000]
    parts = [_html_table(levels)]
    if len(incidents) > 1:
        parts.append(f"<h2>Incidents</h2>{_html_table(incidents, text_from=3)}")
    parts.append(f"<details><summary>Configuration</summary><pre>{escape(config)}</pre></details>")
    return f'<section class="wide"><h2>Levels of {escape(run.facts.name)}</h2>{"".join(parts)}</section>'


def _price_cells(price: PriceFact | None) -> list[str]:
    """What a level costs in steps."""
    if price is None:
        return ["-", "-"]
    if price.realised is None or price.low is None or price.high is None:
        return [more(price.predicted), "not known"]
    return [more(price.predicted), f"{more(price.realised)} ({more(price.low)} to {more(price.high)})"]


def _html_table(rows: Sequence[Sequence[str]], text_from: int = 99) -> str:
    def cell(kind: str, index: int, text: str) -> str:
        shape = ' class="text"' if index >= text_from else ""
        return f"<{kind}{shape}>{escape(text)}</{kind}>"

    head = "".join(cell("th", index, text) for index, text in enumerate(rows[0]))
    body = "".join(f"<tr>{''.join(cell('td', i, text) for i, text in enumerate(row))}</tr>" for row in rows[1:])
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _last(run: ReportedRun) -> Sequence[DecisionFact]:
    return run.facts.decisions[-MOST_DECISIONS:]


def _by_interest(runs: Sequence[ReportedRun]) -> list[ReportedRun]:
    """The last one first: it is usually the one in question. The run that the others are compared with comes last."""
    return [*runs[:0:-1], runs[0]]


def _verdict_rows(run: ReportedRun, runs: Sequence[ReportedRun]) -> list[tuple[str, str]]:
    """What stands below the headline. What to try next is said of the runs that are judged, not of their base."""
    verdict = run.facts.verdict
    rows = [("warning", verdict.warning), ("where the time went", verdict.time), ("what changed", verdict.changed)]
    if run is not runs[0] or len(runs) == 1 or verdict.warning or verdict.tone == "bad":
        rows += [("what to try next", step) for step in verdict.next[:1]] + [("or", step) for step in verdict.next[1:]]
    return [(name, text) for name, text in rows if text]


def _html_verdict(run: ReportedRun, runs: Sequence[ReportedRun]) -> str:
    shape = {"warning": ' class="warn"'}
    rows = "".join(
        f"<dt>{name}</dt><dd{shape.get(name, '')}>{escape(text)}</dd>" for name, text in _verdict_rows(run, runs)
    )
    verdict = run.facts.verdict
    head = f'<p class="dim">{escape(run.facts.name)}</p><p class="head">{escape(verdict.headline)}</p>'
    return f'<section class="wide verdict {verdict.tone}">{head}<dl>{rows}</dl></section>'


def _md_verdict(run: ReportedRun, runs: Sequence[ReportedRun]) -> list[str]:
    rows = [f"- {name}: {_md_text(text, 1500)}" for name, text in _verdict_rows(run, runs)]
    headline = _md_text(run.facts.verdict.headline, 600)
    return [f"**{_md_text(run.facts.name)}: {headline}**", "", *rows, ""]


def _missing(run: RunFacts) -> str:
    if not run.transport:
        return "-"
    return f"{Bytes(run.transport['missing'])} ({percent(run.transport['missing'] / max(1, run.transport['nbytes']))})"


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{clean(kind, 30)} x{count}" for kind, count in sorted(counts.items())) or "none"


def _md(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell if set(cell) <= {"-", ":"} else _md_text(cell) for cell in cells) + " |"


def _md_text(text: str, most: int = 400) -> str:
    """Escape HTML and Markdown, so that a recording cannot add markup."""
    kept = escape(clean(text, most), quote=False)
    return "".join(f"\\{c}" if c in "\\`*_[]|#!" else c for c in kept)


def _whole_percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def _bytes(value: float) -> str:
    return str(Bytes(round(value)))


def _plain(value: float) -> str:
    return f"{value:.3g}"
