"""Every view in a real browser: values are those of the recording, zoom and hover work, the console has no errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gradwire.events import (
    FORMAT,
    VERSION,
    Attached,
    Decided,
    Faulted,
    LinkSample,
    LinksSensed,
    Opened,
    Planned,
    Stepped,
    Transferred,
    TransportChosen,
)
from gradwire.observe.files import segment_path
from gradwire.observe.reader import Record, read
from gradwire.observe.sample import SampleShape, write
from tests.dashboard.conftest import Served, Tab
from tests.dashboard.parsing import events, number
from tests.trials import Trial, decide

VIEWS = ("overview", "timeline", "topology", "links", "transport", "faults", "configuration")


@pytest.fixture(scope="module")
def records(served: Served) -> list[Record]:
    return list(read(served.folder / "one"))


@pytest.mark.parametrize(
    ("width", "height", "scheme"), [(1360, 850, "light"), (390, 844, "dark")], ids=["desk", "phone"]
)
def test_all_views_fit_the_screen(
    served: Served, tab: Callable[..., Tab], width: int, height: int, scheme: str
) -> None:
    seen = tab(width, height, scheme)
    for view in VIEWS:
        seen.open(f"{served.address}/#/{view}?run=one&with=two")
        seen.page.wait_for_timeout(250)
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width, view
        seen.shot(f"{view}-{scheme}-{width}")
    assert seen.page.evaluate("document.documentElement.dataset.theme") == scheme


def test_the_overview_shows_the_log(served: Served, tab: Callable[..., Tab], records: list[Record]) -> None:
    seen = tab()
    seen.open(f"{served.address}/#/overview?run=one")

    def shown(place: str) -> str:
        return str(seen.page.locator(place).inner_text())

    last = [event for rank in range(4) for event in events(records, Stepped, rank)[-20:]]
    mean = sum(event.seconds for event in last) / len(last)
    assert number(shown("[data-test=throughput] .value")) == pytest.approx(1 / mean, rel=0.01)
    steps = events(records, Stepped)
    saved = sum(event.plain_bytes for event in steps) / sum(event.wire_bytes for event in steps)
    assert number(shown("[data-test=saved] .value")) == pytest.approx(saved, rel=0.01)
    assert "predicted" in shown("[data-test=speedup]")
    wire = sum(event.wire for event in last) / len(last)
    assert number(shown("[data-test=split-wire] b")) == pytest.approx(wire, rel=0.01)
    assert number(shown("[data-test=steps]")) == len(events(records, Stepped, 0))
    chosen = events(records, TransportChosen, 0)[-1]
    assert shown("[data-test=carried] .chip") == chosen.transport
    assert chosen.reason in shown("[data-test=carried]")


def test_dragging_zooms_and_double_click_shows_all(served: Served, tab: Callable[..., Tab]) -> None:
    seen = tab()
    seen.open(f"{served.address}/#/timeline?run=one")
    plot = seen.page.locator("[data-test=network] .u-over")
    plot.wait_for()
    box = plot.bounding_box()
    seen.page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 40)
    seen.page.mouse.down()
    seen.page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 50, steps=6)
    seen.page.mouse.up()
    seen.page.wait_for_function("() => location.hash.includes('from=')")
    found = re.search(r"from=([\d.]+)&to=([\d.]+)", seen.page.url)
    duration = served.library.runs["one"].data.state.elapsed
    assert found
    assert float(found[1]) == pytest.approx(duration * 0.25, rel=0.03)
    assert float(found[2]) == pytest.approx(duration * 0.5, rel=0.03)
    seen.page.wait_for_function("() => document.querySelector('[data-test=range]').textContent.startsWith('2:')")
    seen.shot("timeline-zoomed")
    plot.dblclick(position={"x": 200, "y": 40})
    seen.page.wait_for_function("() => !location.hash.includes('from=')")


def test_keys_move_the_time_range_and_choose_the_view(served: Served, tab: Callable[..., Tab]) -> None:
    seen = tab()
    seen.open(f"{served.address}/#/timeline?run=one")
    seen.page.locator("[data-test=network] .u-over").wait_for()
    seen.page.locator("[data-test=network] .plot").focus()
    duration = served.library.runs["one"].data.state.elapsed
    for key, begins in (("+", 0.25), ("ArrowRight", 0.375), ("ArrowLeft", 0.25)):
        seen.page.keyboard.press(key)
        seen.page.wait_for_function(
            "from => location.hash.includes('from=' + from)", arg=f"{duration * begins:.1f}"[:-1]
        )
    seen.page.keyboard.press("0")
    seen.page.wait_for_function("() => !location.hash.includes('from=')")
    seen.page.locator("main").focus()
    seen.page.keyboard.press("4")
    seen.page.wait_for_selector("[data-view=links] [data-link]")


def test_hovering_shows_the_decision(served: Served, tab: Callable[..., Tab], records: list[Record]) -> None:
    seen = tab()
    seen.open(f"{served.address}/#/timeline?run=one")
    plot = seen.page.locator("[data-test=decision] .u-over")
    plot.wait_for()
    box = plot.bounding_box()
    start = records[0].time
    made = [
        (record.time - start, record.event)
        for record in records
        if isinstance(record.event, Decided) and record.rank == 0
    ]
    duration = served.library.runs["one"].data.state.elapsed
    for share in (0.1, 0.45, 0.84, 0.95):
        seen.page.mouse.move(box["x"] + box["width"] * share, box["y"] + 30)
        expected = [event for at, event in made if at <= share * duration][-1]
        seen.page.wait_for_function(
            "text => document.querySelector('[data-test=reason]').textContent.includes(text)", arg=expected.reason
        )
    legend = seen.page.locator("[data-test=split] li").filter(has_text="wire").inner_text()
    at = 0.95 * duration
    near = min(
        (record for record in records if isinstance(record.event, Stepped) and record.rank == 0),
        key=lambda record: abs(record.time - start - at),
    )
    assert number(legend.removeprefix("wire")) == pytest.approx(near.event.wire, rel=0.5)


def test_the_topology_draws_the_plan(served: Served, tab: Callable[..., Tab], records: list[Record]) -> None:
    seen = tab()
    seen.open(f"{served.address}/#/topology?run=one")
    plan = events(records, Planned)[-1]
    seen.page.wait_for_selector("[data-tree]")
    for index, tree in enumerate(plan.trees):
        assert seen.page.locator(f"[data-tree='{index}']").count() == sum(m != p for m, p in tree.parents.items())
    assert seen.page.locator("[data-rank]").count() == 4
    assert plan.reason in seen.page.locator("[data-test=plan-reason]").inner_text()
    sides = [route for route in plan.routes if route.side]
    assert seen.page.locator(".route.side").count() == len(sides)


def test_the_links_matrix_shows_each_link(served: Served, tab: Callable[..., Tab], records: list[Record]) -> None:
    seen = tab()
    seen.open(f"{served.address}/#/links?run=one")
    last = {(link.source, link.destination): link for event in events(records, LinksSensed) for link in event.links}
    seen.page.wait_for_selector("[data-link='0>1']")
    for (source, destination), link in last.items():
        cell = seen.page.locator(f"[data-link='{source}>{destination}']")
        label = (cell.get_attribute("aria-label") or "").partition(": ")[2]
        assert number(label) == pytest.approx(link.rate * 8, rel=0.01)
    seen.page.get_by_role("radio", name="Round trip").click()
    cell = seen.page.locator("[data-link='0>3']")
    cell.hover()
    assert number(cell.inner_text()) == pytest.approx(last[0, 3].rtt, rel=0.01)
    assert "0 → 3" in seen.page.locator("[data-test=link]").inner_text()


def test_the_transport_page_adds_up(served: Served, tab: Callable[..., Tab], records: list[Record]) -> None:
    seen = tab()
    seen.open(f"{served.address}/#/transport?run=one")
    recorded = events(records, Transferred)
    value = seen.page.locator("[data-test=transfers] .value").inner_text()
    assert number(value) == sum(event.transfers for event in recorded)
    shown = seen.page.locator("[data-close=complete] b").inner_text()
    assert number(shown) == sum(event.closes.get("complete", 0) for event in recorded)
    each = [(record.rank, record.event) for record in records if isinstance(record.event, Transferred)]
    came, went = {(event.peer, rank) for rank, event in each}, {(rank, e.peer) for rank, e in each if e.returned}
    assert seen.page.locator("[data-pair]").count() == len(came | went)


def test_two_runs_are_compared_in_one_chart(served: Served, tab: Callable[..., Tab]) -> None:
    seen = tab()
    seen.open(f"{served.address}/#/timeline?run=one")
    seen.page.select_option("[data-test=with]", "two")
    seen.page.wait_for_selector("[data-test=network] li:has-text('rate, two')")
    assert "with=two" in seen.page.url


def test_the_theme_can_be_switched_and_stays(served: Served, tab: Callable[..., Tab]) -> None:
    seen = tab()
    seen.open(f"{served.address}/#/overview?run=one")
    seen.page.locator("button.theme").click()
    assert seen.page.evaluate("document.documentElement.dataset.theme") == "dark"
    seen.page.reload()
    seen.page.wait_for_selector("html[data-theme=dark] main .panel")


def test_an_hour_of_sixteen_ranks_is_drawn_soon(served: Served, tab: Callable[..., Tab]) -> None:
    """The target is a second on a quiet machine; the ceiling here allows for a slow one."""

    def draw(_: Trial) -> None:
        seen = tab()
        seen.page.goto(f"{served.address}/#/timeline?run=hour")
        seen.page.wait_for_selector("[data-test=split] canvas", timeout=30_000)
        took = seen.page.evaluate("performance.now()") / 1000
        heap = seen.page.evaluate("performance.memory.usedJSHeapSize")
        assert heap < 64 << 20
        assert float(took) < 5.0

    decide(draw)


def test_an_act_of_the_accuracy_guard_is_a_warning_of_the_verdict(
    serve: Callable[..., Served], tab: Callable[..., Tab], tmp_path: Path
) -> None:
    detail = "the loss rose from 1.2 to 1.5 at topk:0.01+int8; backing off to int4"
    for name, harmed in (("calm", False), ("harmed", True)):
        folder = write(tmp_path / name, SampleShape(ranks=2, seconds=60.0, seed=3), packed=False)
        acts = [Faulted(5010.0, 20, "guard", "first"), Faulted(5020.0, 42, "guard", detail)] if harmed else []
        with segment_path(folder, 0, 0).open("ab") as file:
            file.write(msgspec.json.Encoder().encode_lines(acts))
    running = serve(tmp_path)
    for name in ("calm", "harmed"):
        running.wait_until_read(name, 20)
    seen = tab(390, 844)
    seen.open(f"{running.address}/#/overview?run=calm")
    seen.page.wait_for_selector("[data-test=verdict]")
    assert seen.page.locator("[role=alert]").count() == 0
    seen.open(f"{running.address}/#/overview?run=harmed")
    seen.page.wait_for_selector("[role=alert]")
    text = str(seen.page.locator("[role=alert]").inner_text())
    assert text.startswith("Compression harmed training 2 times; last at step 42: " + detail)
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= 390
    seen.page.locator("[role=alert] a").click()
    seen.page.wait_for_selector(".chip.bad")
    assert seen.page.locator(".chip.bad").all_inner_texts() == ["guard", "guard"]
    seen.shot("guard")


def test_links_without_measurements_show_no_scale(
    serve: Callable[..., Served], tab: Callable[..., Tab], tmp_path: Path
) -> None:
    """Round trips come with the first pulses, rates later or never."""
    recorded = [
        Opened(1.0, FORMAT, VERSION, 0, 2, 50.0, "quiet"),
        Attached(1.0, 0, 2, 10, {}, "host0"),
        LinksSensed(2.0, 1, (LinkSample(0, 1, rtt=0.01), LinkSample(1, 0, rtt=0.01))),
    ]
    folder = tmp_path / "a-run-with-quite-a-long-name-of-its-own"
    folder.mkdir()
    segment_path(folder, 0, 0).write_bytes(msgspec.json.Encoder().encode_lines(recorded))
    running = serve(tmp_path)
    seen = tab()
    for view in ("links", "topology"):
        seen.open(f"{running.address}/#/{view}")
        seen.page.wait_for_timeout(400)
        text = str(seen.page.locator("main").inner_text())
        assert "Infinity" not in text
        assert "bit/s" not in text
        assert "measured" in text, view
    chosen = seen.page.locator("[data-test=run]")
    assert chosen.evaluate("e => e.scrollWidth <= e.clientWidth"), "the run's name is cut"
