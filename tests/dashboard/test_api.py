"""The API returns what was recorded, in the form of its OpenAPI description."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, assume, given, settings

from gradwire.dashboard.openapi import document
from gradwire.dashboard.routes import ROUTES
from gradwire.dashboard.schema import RunsChanged
from gradwire.events import Decided, LinksSensed, Noted, Planned, Stepped, Transferred, TransportChosen
from gradwire.observe.reader import Record, read
from tests.dashboard.conftest import Served


def ask(served: Served, path: str, **query: Any) -> Any:
    answer = httpx.get(f"{served.address}/api/runs/{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture(scope="module")
def records(served: Served) -> list[Record]:
    return list(read(served.folder / "one"))


def events(records: list[Record], kind: type, rank: int | None = None) -> list[Any]:
    return [r.event for r in records if isinstance(r.event, kind) and rank in (None, r.rank)]


def test_runs_are_listed(served: Served) -> None:
    runs = httpx.get(served.address + "/api/runs").json()["runs"]
    assert {run["id"] for run in runs} == {"one", "two", "hour"}
    assert next(run for run in runs if run["id"] == "one")["ranks"] == [0, 1, 2, 3]
    assert not any(run["live"] for run in runs)


def test_the_overview_adds_up_the_log(served: Served, records: list[Record]) -> None:
    overview = ask(served, "one/overview")
    steps = events(records, Stepped)
    assert overview["run"]["steps"] == len(events(records, Stepped, 0))
    assert overview["wire_bytes"] == sum(event.wire_bytes for event in steps)
    assert overview["plain_bytes"] == sum(event.plain_bytes for event in steps)
    last = [event for rank in range(4) for event in events(records, Stepped, rank)[-20:]]
    for part in ("seconds", "compute", "encode", "wire", "wait"):
        assert overview["split"][part] == pytest.approx(sum(getattr(event, part) for event in last) / len(last))
    assert overview["note"]["accuracy"] == events(records, Noted)[-1].accuracy
    assert overview["recent"][0]["reason"] == events(records, Decided, 0)[-1].reason
    chosen = events(records, TransportChosen, 0)[-1]
    carried = {"transport": chosen.transport, "step": chosen.step, "reason": chosen.reason}
    assert overview["carried"] == carried


def test_a_series_holds_every_step_when_there_is_room(served: Served, records: list[Record]) -> None:
    series = ask(served, "one/series", name=["seconds@2", "sent@2"], width=4000)["series"]
    steps = events(records, Stepped, 2)
    assert series[0]["mean"] == pytest.approx([event.seconds for event in steps])
    assert series[1]["mean"] == pytest.approx([event.wire_bytes / event.plain_bytes for event in steps])


def test_a_reduced_series_keeps_the_extremes(served: Served, records: list[Record]) -> None:
    series = ask(served, "one/series", name="seconds@0", width=50)["series"][0]
    steps = [event.seconds for event in events(records, Stepped, 0)]
    assert len(series["at"]) <= 53
    assert (min(series["low"]), max(series["high"])) == (min(steps), max(steps))


def test_decisions_and_plans_are_those_of_the_log(served: Served, records: list[Record]) -> None:
    decided = events(records, Decided, 0)
    shown = ask(served, "one/decisions")["decisions"]
    assert [(d["step"], d["level"], d["reason"]) for d in shown] == [(e.step, e.level, e.reason) for e in decided]
    plans = ask(served, "one/topology")["plans"]
    assert [plan["version"] for plan in plans] == [event.version for event in events(records, Planned)]
    tree, drawn = plans[0]["trees"][0], events(records, Planned)[0].trees[0]
    assert {tuple(edge) for edge in tree["up"]} == {(m, p) for m, p in drawn.parents.items() if m != p}


def test_links_and_transfers_are_those_of_the_log(served: Served, records: list[Record]) -> None:
    last = {(link.source, link.destination): link for event in events(records, LinksSensed) for link in event.links}
    shown = {(link["source"], link["destination"]): link for link in ask(served, "one/links")["links"]}
    assert shown.keys() == last.keys()
    assert all(shown[pair]["rate"] == last[pair].rate and shown[pair]["rtt"] == last[pair].rtt for pair in last)
    transport, recorded = ask(served, "one/transport"), events(records, Transferred)
    assert transport["missing"] == sum(event.missing for event in recorded)
    assert transport["closes"]["complete"] == sum(event.closes.get("complete", 0) for event in recorded)
    assert sum(pair["nbytes"] for pair in transport["pairs"]) == sum(event.nbytes for event in recorded)


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ({"name": "seconds@0", "width": "0"}, "width"),
        ({"name": "seconds@0", "width": "many"}, "width"),
        ({"name": "seconds@0", "start": "nan"}, "start"),
        ({"name": "seconds@0", "start": "9", "end": "3"}, "end"),
        ({}, "name"),
    ],
)
def test_a_wrong_parameter_is_named(served: Served, query: dict[str, str], word: str) -> None:
    answer = httpx.get(served.address + "/api/runs/one/series", params=query)
    assert answer.status_code == 422
    assert answer.json()["error"].startswith(word)


def test_every_response_matches_its_struct(served: Served) -> None:
    for route in ROUTES:
        query = {"name": "seconds@0"} if route.name == "series" else {}
        answer = httpx.get(f"{served.address}/api/runs/hour/{route.name}", params=query)
        assert answer.status_code == 200
        msgspec.json.decode(answer.content, type=route.returns)


def test_the_api_matches_its_openapi_description(served: Served) -> None:
    """Requests made up from the description, right and wrong: no answer outside it, and never a 5xx."""
    description = document()
    del description["paths"]["/api/live"]  # a stream without an end
    for path in description["paths"].values():
        for parameter in path["get"]["parameters"]:
            if parameter["name"] == "run":
                parameter["schema"]["enum"] = ["one", "none"]
    for result in schemathesis.openapi.from_dict(description).get_all_operations():
        operation = result.ok()

        @settings(max_examples=15, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy())
        def check(case: Any) -> None:
            query = case.query or {}
            assume(not query.get("start", 0) > query.get("end", 1e9))  # what the description cannot say
            case.call_and_validate(base_url=served.address)

        check()


def test_prometheus_finds_every_run(served: Served, records: list[Record]) -> None:
    answer = httpx.get(served.address + "/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    lines = [line for line in answer.text.splitlines() if line.startswith("gradwire_") and 'run="one"' in line]
    steps = len(events(records, Stepped, 0))
    assert any(line.startswith("gradwire_steps_total") and line.endswith(f" {steps:.1f}") for line in lines), lines[:5]


def test_the_live_stream_begins_with_every_run(served: Served) -> None:
    with httpx.stream("GET", served.address + "/api/live", timeout=10) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        text = ""
        for part in stream.iter_text():
            text += part
            if "\n\n" in text:
                break
    assert text.startswith("event: pulse\ndata: ")
    pulse = msgspec.json.decode(text.partition("data: ")[2].partition("\n")[0], type=RunsChanged)
    assert {run.id for run in pulse.runs} == {"one", "two", "hour"}
