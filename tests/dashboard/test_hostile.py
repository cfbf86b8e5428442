"""Damaged, truncated, endless or newer recordings: what can be read is shown, the rest is reported."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import httpx
import msgspec
import pytest

from gradwire.dashboard.routes import ROUTES
from gradwire.dashboard.run_data import MAX_SERIES, RunData
from gradwire.events import FORMAT, VERSION, Attached, Decided, Event, Faulted, LinkSample, LinksSensed, Opened, Stepped
from gradwire.observe.files import pack
from gradwire.observe.reader import Record
from tests.dashboard.conftest import Served, Tab

SCRIPT = '<script>document.title="owned"</script><img src=x onerror="document.title=\'owned\'">'
ONE_STEP = (1.0, 0.4, 0.1, 0.3, 0.2, 100, 10, 150)


def opened(rank: int = 0, version: int = VERSION) -> Opened:
    return Opened(0.0, FORMAT, version, rank, 2, 1_750_000_000.0, "hostile")


def write(path: Path, *events: Event, tail: bytes = b"") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.Encoder().encode_lines(events) + tail)


def faults_of(served: Served, run: str) -> str:
    return json.dumps(httpx.get(f"{served.address}/api/runs/{run}/faults").json(), ensure_ascii=False)


def wait_for(served: Served, run: str, text: str) -> None:
    deadline = monotonic() + 15
    while text not in faults_of(served, run):
        assert monotonic() < deadline, faults_of(served, run)
        sleep(0.05)


def test_script_in_every_text_is_shown_as_text(
    serve: Callable[..., Served], tab: Callable[..., Tab], tmp_path: Path
) -> None:
    config: dict[str, Any] = {"level": SCRIPT, SCRIPT: "1"}
    write(
        tmp_path / "run" / "rank00000.0000.jsonl",
        opened(),
        Attached(0.0, 0, 2, 10, config, SCRIPT, SCRIPT, SCRIPT, SCRIPT),
        Decided(0.5, 0, 0, SCRIPT, SCRIPT, 1),
        Stepped(1.0, 0, *ONE_STEP, SCRIPT),
        Faulted(1.5, 0, SCRIPT, SCRIPT),
        LinksSensed(1.6, 0, (LinkSample(0, 1, 1e6, 0.01),)),
    )
    served, seen = serve(tmp_path), tab()
    served.wait_until_read("run", 1)
    for view in ("overview", "timeline", "topology", "links", "transport", "faults", "configuration"):
        seen.open(f"{served.address}/#/{view}")
        seen.page.wait_for_function("title => document.title === title", arg=f"run · {view}")
        seen.page.wait_for_timeout(150)  # for a script that would run only now
        assert seen.page.evaluate("document.title") == f"run · {view}"
        assert seen.page.locator("main script, main img").count() == 0
    seen.open(f"{served.address}/#/overview")
    assert "<script>" in seen.page.locator("main ol").inner_text()


def test_a_cut_and_damaged_recording_shows_the_rest_and_says_so(serve: Callable[..., Served], tmp_path: Path) -> None:
    steps = [Stepped(float(at), at, *ONE_STEP) for at in range(1, 6)]
    broken = b'{"event":"stepped","at":\n\xff\xfe\x00\n[]\n' + b'{"a":' * 5000 + b"\n"
    write(tmp_path / "run" / "rank00000.0000.jsonl", opened(), *steps, tail=broken + b'{"event":"step')
    body = msgspec.json.Encoder().encode_lines([opened(1), *steps])
    (tmp_path / "run" / "rank00001.0000.jsonl.zst").write_bytes(pack(body)[:-9])
    served = serve(tmp_path)
    served.wait_until_read("run", 5)
    wait_for(served, "run", "damaged lines")
    wait_for(served, "run", "rank00001.0000.jsonl.zst is damaged or truncated")
    assert httpx.get(served.address + "/api/runs/run/overview").json()["run"]["steps"] == 5


def test_a_recording_of_a_newer_schema_is_not_guessed_at(serve: Callable[..., Served], tmp_path: Path) -> None:
    write(tmp_path / "run" / "rank00000.0000.jsonl", opened(version=VERSION + 1), Stepped(1.0, 0, *ONE_STEP))
    served = serve(tmp_path)
    wait_for(served, "run", f"schema {VERSION + 1}")
    assert httpx.get(served.address + "/api/runs/run/overview").json()["run"]["steps"] == 0


def test_a_file_that_is_something_else_is_named(serve: Callable[..., Served], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "rank00000.0000.jsonl").write_bytes(b"GIF89a" * 100 + b"\n")
    wait_for(serve(tmp_path), "run", "not a gradwire recording")


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
def test_a_huge_line_fills_no_memory(serve: Callable[..., Served], tmp_path: Path, packed: bool) -> None:
    """Forty megabytes without a line's end; packed they are a few kilobytes."""
    head = msgspec.json.Encoder().encode_lines([opened()])
    body = head + b"x" * (40 << 20) + b"\n" + msgspec.json.Encoder().encode_lines([Stepped(1.0, 0, *ONE_STEP)])
    (tmp_path / "run").mkdir()
    name = "rank00000.0000.jsonl" + (".zst" if packed else "")
    (tmp_path / "run" / name).write_bytes(pack(body) if packed else body)
    del body
    tracemalloc.start()
    served = serve(tmp_path)
    served.wait_until_read("run", 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 << 20


def test_impossible_numbers_break_no_response(serve: Callable[..., Served], tmp_path: Path) -> None:
    far = Stepped(1e300, 1, *ONE_STEP)
    odd = Stepped(2.0, -5, 1e308, -1e308, 0.0, 0.0, 0.0, -1, 2**62, 1)
    links = LinksSensed(3.0, 0, (LinkSample(-1, 2**40, 1e308, -1.0), LinkSample(0, 1, 0.0, 0.0)))
    write(tmp_path / "run" / "rank00000.0000.jsonl", opened(), far, odd, odd, links, Stepped(4.0, 2, *ONE_STEP))
    served = serve(tmp_path)
    served.wait_until_read("run", 3)
    for route in ROUTES:
        answer = httpx.get(f"{served.address}/api/runs/run/{route.name}", params={"name": "seconds@0"})
        assert answer.status_code == 200, (route.name, answer.text)
        msgspec.json.decode(answer.content, type=route.returns)
    wait_for(served, "run", "impossible times")


def test_run_data_stays_bounded_whatever_it_receives() -> None:
    data = RunData()
    for rank in range(2000):
        data.take(Record(rank, 100.0, Stepped(0.0, 0, *ONE_STEP)))
        data.take(Record(rank, 101.0, LinksSensed(0.0, 0, tuple(LinkSample(rank, peer) for peer in range(300, 400)))))
    assert len(data.series) <= MAX_SERIES
    assert len(data.sensed_links) == 0
