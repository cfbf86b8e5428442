"""Level prices: every view says what a level costs in steps, as predicted and as noted losses show it."""

from __future__ import annotations

import json
import logging

import pytest
from rich.console import Console

from gradwire.events import Opened, Priced, Stepped, Synchronised
from gradwire.observe.level_prices import LevelPrices
from gradwire.observe.report import ReportedRun, to_html, to_json, to_markdown
from gradwire.observe.run_facts import facts
from gradwire.observe.sinks import Logging
from gradwire.observe.state import RunState
from gradwire.observe.summary import SummarySink
from gradwire.observe.terminal import draw

LEVEL = "topk:0.1+int8"
PREDICTED = Priced(1.0, 10, LEVEL, 1.08, 1.08)
NOTED = Priced(2.0, 60, LEVEL, 1.08, 1.1, notes=50)
KNOWN = Priced(3.0, 900, LEVEL, 1.08, 1.2, 1.25, 1.1, 1.4, 890)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (PREDICTED, "8.0 % more steps predicted; handle.note(loss) lets gradwire compare it with what happens"),
        (NOTED, "8.0 % more steps predicted; noted losses do not show it yet"),
        (KNOWN, "8.0 % more steps predicted; noted losses show 25 % (10 % to 40 %)"),
    ],
)
def test_a_sentence_says_what_is_known(event: Priced, expected: str) -> None:
    prices = LevelPrices()
    prices.take(event)
    assert prices.sentence(LEVEL) == f"{LEVEL}: {expected}"
    assert prices.sentence("int8") == ""


def state() -> RunState:
    found = RunState()
    step = Stepped(2.0, 1, 1.0, 0.5, 0.1, 0.2, 0.2, 400, 40, 400, LEVEL)
    events = (Opened(0.0, "gradwire-events", 1, 0, 2, 0.0), PREDICTED, step, KNOWN)
    for event in events:
        found.take((0, event.at, event))
    return found


def test_the_last_event_of_a_level_is_what_views_show() -> None:
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115 - closed with the process
    console.print(draw(state(), 120))
    assert "noted losses show 25 % (10 % to 40 %)" in " ".join(console.export_text().split())


def test_a_report_has_it_in_every_form() -> None:
    run = ReportedRun(state(), facts("run", state()))
    assert "noted losses show 25 % (10 % to 40 %)" in to_markdown([run])
    assert "<td>8.0 %</td><td>25 % (10 % to 40 %)</td>" in to_html([run])
    price = json.loads(to_json([run]))["runs"][0]["prices"][LEVEL]
    assert (price["predicted"], price["realised"], price["low"], price["high"]) == (1.08, 1.25, 1.1, 1.4)


def test_the_summary_and_the_log_have_it(caplog: pytest.LogCaptureFixture) -> None:
    sink = SummarySink()
    for event in (Synchronised(0.0, 0, 0, LEVEL, 400, 40, 10, 0.1), PREDICTED, KNOWN):
        sink.emit(event)
    assert f"  steps: {LEVEL}: 8.0 % more steps predicted; noted losses show 25 %" in str(sink.summary())
    with caplog.at_level(logging.INFO, "gradwire"):
        Logging().emit(KNOWN)
    assert "step 900: topk:0.1+int8: 8.0 % more steps predicted; noted losses show 25 %" in caplog.text


def test_a_recording_cannot_make_views_keep_ever_more_levels() -> None:
    prices = LevelPrices()
    for number in range(1000):
        prices.take(Priced(0.0, 1, f"topk:0.{number}", 1.1, 1.1))
    assert len(prices.levels) <= 64
