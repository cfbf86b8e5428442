"""Served recordings and a real browser for the dashboard's tests."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
import uvicorn

from gradwire.dashboard.app import build_app
from gradwire.dashboard.library import Library
from gradwire.dashboard.serve import Server, bind
from gradwire.observe.sample import SampleShape, write

SHOTS = Path(__file__).parents[2] / "build" / "dashboard-screenshots"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


@dataclass
class Served:
    """A running dashboard."""

    address: str
    library: Library
    folder: Path
    server: Server
    thread: threading.Thread

    def wait_until_read(self, run: str, steps: int, seconds: float = 90.0) -> None:
        """Until so many steps of a run are folded in."""
        deadline = monotonic() + seconds
        while run not in self.library.runs or self.library.runs[run].data.state.steps < steps:
            assert monotonic() < deadline, f"{run} was not read in {seconds} s"
            sleep(0.02)

    def close(self) -> None:
        self.server.stop()
        self.thread.join(15)
        assert not self.thread.is_alive(), "the server did not stop"


def serve_folder(folder: Path, token: str | None = None) -> Served:
    library = Library([folder])
    listener = bind("127.0.0.1", 0)
    app = build_app(library, token)
    server = Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2), app.state.live)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    return Served(f"http://127.0.0.1:{listener.getsockname()[1]}", library, folder, server, thread)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Two small recordings and an hour of sixteen ranks, all read."""
    folder = tmp_path_factory.mktemp("runs")
    write(folder / "one", SampleShape(ranks=4, seconds=600.0, seed=3))
    write(folder / "two", SampleShape(ranks=4, seconds=500.0, seed=5), packed=False)
    write(folder / "hour", SampleShape(ranks=16, seconds=3600.0, seed=1))
    running = serve_folder(folder)
    for run in ("one", "two", "hour"):
        running.wait_until_read(run, 100)
    yield running
    running.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Serve a folder for one test."""
    running: list[Served] = []

    def start(folder: Path, token: str | None = None) -> Served:
        running.append(serve_folder(folder, token))
        return running[-1]

    yield start
    for one in running:
        one.close()


@dataclass
class Tab:
    """A page, and everything the browser complained about."""

    page: Any
    complaints: list[str] = field(default_factory=list)

    def open(self, address: str) -> None:
        self.page.goto(address)
        self.page.wait_for_selector("main .panel", timeout=15_000)

    def shot(self, name: str) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=str(SHOTS / f"{name}.png"), full_page=True)

    def close(self) -> None:
        self.page.context.close()
        assert not self.complaints, self.complaints


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's Chromium, driven by Playwright."""
    program = next((found for name in CHROMIUM if (found := shutil.which(name))), None)
    if program is None:
        if os.environ.get("GRADWIRE_CI") == "1":
            pytest.fail("CI needs chromium: scripts/ci-tools installs it")
        pytest.skip("no chromium on this machine: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def tab(browser: Any) -> Iterator[Callable[..., Tab]]:
    """Open a page of some size and colour scheme; at the end nothing may have been complained about."""
    opened: list[Tab] = []

    def make(width: int = 1360, height: int = 850, scheme: str = "light") -> Tab:
        opened.append(new_tab(browser, width, height, scheme))
        return opened[-1]

    yield make
    for made in opened:
        made.close()


def new_tab(browser: Any, width: int = 1360, height: int = 850, scheme: str = "light") -> Tab:
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    made = Tab(context.new_page())
    made.page.set_default_timeout(15_000)
    made.page.on("console", lambda said: made.complaints.append(said.text) if said.type == "error" else None)
    made.page.on("pageerror", lambda error: made.complaints.append(str(error)))
    made.page.on("request", lambda asked: _is_ours(made, asked.url))
    return made


def _is_ours(tab: Tab, url: str) -> None:
    if not url.startswith("http://127.0.0.1:"):
        tab.complaints.append(f"a request to the outside: {url}")
