"""What the accuracy guard did is in the summary, in watch, in reports, on the dashboard and in Prometheus."""

from __future__ import annotations

import json
import logging
import re
from html import unescape
from pathlib import Path

import msgspec
import pytest

from gradwire.dashboard.run_data import RunData
from gradwire.events import Attached, Faulted
from gradwire.observe.files import segment_path
from gradwire.observe.guard_acts import GuardActs
from gradwire.observe.reader import Record
from gradwire.observe.report import load, to_html, to_json, to_markdown
from gradwire.observe.sinks import Logging
from gradwire.observe.state import RunState
from gradwire.observe.summary import SummarySink
from tests.observe.recordings import fold, small
from tests.observe.test_terminal import shown
from tests.observe.test_views_agree import overview

FIRST = "the residual is 300 times the gradient at topk:0.01+int8; backing off to int4"
LAST = "the loss rose from 1.2 to 1.5 at topk:0.03+int8; backing off to int4"
VERDICT = f"compression harmed training 2 times; last at step 42: {LAST}"
ACTS = [Faulted(5001.0, 7, "guard", FIRST), Faulted(5002.0, 42, "guard", LAST)]


def harmed(folder: Path) -> Path:
    """A recording with two acts of the guard, and later faults of other kinds."""
    run = small(folder)
    later = [Faulted(5003.0 + number, 50 + number, "late_rank", f"rank 1 was late {number}", 1) for number in range(9)]
    with segment_path(run, 0, 0).open("ab") as file:
        file.write(msgspec.json.Encoder().encode_lines([*ACTS, *later]))
    return run


def test_the_verdict_counts_and_quotes_the_last_act() -> None:
    acts = GuardActs()
    assert acts.verdict == acts.headline == ""
    acts.take(Faulted(1.0, 3, "late_rank", "rank 1 was late", 1))
    assert not acts.count
    acts.take(ACTS[0])
    assert acts.verdict == f"compression harmed training once; at step 7: {FIRST}"
    acts.take(ACTS[1])
    assert acts.verdict == VERDICT
    acts.take(Faulted(1.0, 3, "guard", "\x1b[2Jcleared\n" + "x" * 10_000))
    assert "\x1b" not in acts.verdict
    assert len(acts.verdict) < 1000


def test_the_summary_warns_and_names_the_setting_that_prevents_it() -> None:
    sink = SummarySink()
    sink.emit(Attached(0.0, 0, 2, 100, {}))
    assert "harmed" not in str(sink.summary())
    before = sink.summary()
    for act in ACTS:
        sink.emit(act)
    [line] = [line for line in str(sink.summary()).splitlines() if "harmed" in line]
    assert line.startswith(f"  WARNING: {VERDICT}")
    assert "lossiest" in line
    assert not before.guard.count, "a summary does not change afterwards"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_watch_keeps_it_at_the_top_when_other_faults_follow(tmp_path: Path, width: int) -> None:
    state, _ = fold(harmed(tmp_path))
    lines = shown(state, width).splitlines()
    assert max(map(len, lines)) <= width
    labels = [line.split(" ")[0] for line in lines]
    assert labels.index("guard") < labels.index("step")
    assert VERDICT in re.sub(r"\s+", " ", " ".join(lines))
    assert sum("rank 1 was late" in line for line in lines) == 3
    calm, _ = fold(small(tmp_path / "other"))
    assert not any(line.startswith("guard") for line in shown(calm, width).splitlines())


def test_reports_give_a_verdict_only_where_there_is_one(tmp_path: Path) -> None:
    runs = load([harmed(tmp_path), small(tmp_path / "other")])
    bad, good = json.loads(to_json(runs))["runs"]
    assert (bad["guard_acts"], bad["guard"]) == (2, VERDICT)
    assert (good["guard_acts"], good["guard"]) == (0, "")
    page = unescape(to_html(runs))
    assert page.count(f'<dd class="warn">{VERDICT}</dd>') == 1
    assert page.count("the setting lossiest (GRADWIRE_LOSSIEST) rules") == 1
    assert page.index(VERDICT) < page.index("<h2>Summary</h2>")
    text = to_markdown(runs)
    assert text.count("compression harmed training 2 times; last at step 42") == 1
    assert "| times that compression harmed training | 2 | 0 |" in text
    assert "harmed" not in to_html(runs[1:])
    assert "harmed" not in to_markdown(runs[1:])


def test_the_dashboards_overview_has_it(tmp_path: Path) -> None:
    data = RunData()
    data.take(Record(0, 1.0, Attached(1.0, 0, 2, 100, {})))
    assert overview(data).guard is None
    for act in ACTS:
        data.take(Record(0, act.at, act))
    found = overview(data).guard
    assert found is not None
    assert (found.count, found.step, found.headline, found.detail) == (
        2,
        42,
        "compression harmed training 2 times",
        LAST,
    )


def test_prometheus_counts_it_from_zero(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    from gradwire.observe.metrics import exposition

    text = exposition({"bad": fold(harmed(tmp_path))[0], "good": RunState()}).decode()
    assert 'gradwire_guard_acts_total{run="bad"} 2.0' in text
    assert 'gradwire_guard_acts_total{run="good"} 0.0' in text


@pytest.mark.parametrize(("name", "lines"), [("gradwire", 0), ("mine", 1)])
def test_a_logging_sink_does_not_repeat_the_warning_in_the_same_log(
    caplog: pytest.LogCaptureFixture, name: str, lines: int
) -> None:
    with caplog.at_level(logging.DEBUG):
        Logging(logging.getLogger(name)).emit(ACTS[0])
    assert len(caplog.records) == lines
