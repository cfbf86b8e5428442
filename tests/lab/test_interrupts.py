"""Ctrl-C at every line of a lab from its opening to its end: it is never lost, and nothing is left behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from gradwire.cli import signals
from gradwire.cli.signals import run_to_end
from gradwire.lab import Lab
from gradwire.lab import lab as lab_module
from gradwire.lab.interrupts import Interrupts
from gradwire.network import Network
from gradwire.network.network import as_hosts

FILES = {str(path) for path in Path(lab_module.__file__).parent.glob("*.py")} | {subprocess.__file__}
Point = tuple[str, int]


def session() -> None:
    """As the commands open a lab. Ends by itself soon, so that a lost signal shows as an end without an exception."""
    with Interrupts(), Lab(Network("one", as_hosts("a"), ())) as lab:
        lab.run(["sleep", "0.1"], timeout=60)


def traced(action: Callable[[], None], at_line: Callable[[Point], None]) -> None:
    """Run `action` and call `at_line` before each line of the lab and of subprocess."""

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line":
            at_line((frame.f_code.co_filename, frame.f_lineno))
        return trace

    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(None)


def points() -> list[Point]:
    """Every line in the order in which a session first comes to it."""
    seen: dict[Point, None] = {}
    traced(session, seen.setdefault)
    return list(seen)


def interrupt(point: Point) -> None:
    """A session with Ctrl-C at the first time that it comes to `point`."""
    sent = False

    def send(here: Point) -> None:
        nonlocal sent
        if here == point and not sent:
            sent = True
            signal.raise_signal(signal.SIGINT)

    try:
        traced(session, send)
    except KeyboardInterrupt:
        return
    assert not sent, f"the signal was lost at {point}"


@pytest.fixture
def _ctrl_c() -> Any:
    """As in a program that a terminal started."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c")
@pytest.mark.timeout(600)
def test_ctrl_c_at_any_line_ends_the_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_RUNTIME_DIR", str(tmp_path))
    children = Path("/proc/thread-self/children")
    before = children.read_text()
    found = points()
    assert len(found) > 100
    for point in found:
        began = time.monotonic()
        interrupt(point)
        assert children.read_text() == before, f"a process was left behind at {point}"
        assert not list(tmp_path.iterdir()), f"a record was left behind at {point}"
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert time.monotonic() - began < 20, f"at {point} something waited until its time was up"


@pytest.mark.usefixtures("_ctrl_c")
def test_a_signal_is_handled_when_the_first_block_ends() -> None:
    reached: list[object] = []

    def blocks() -> None:
        with Interrupts() as outer:
            with Interrupts() as inner:
                signal.raise_signal(signal.SIGINT)
                reached.append((outer.noted, inner.noted))
            reached.append("after the first block")

    with pytest.raises(KeyboardInterrupt):
        blocks()
    assert reached == [(signal.SIGINT, signal.SIGINT)]


def test_signals_that_are_ignored_stay_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGHUP)
        assert interrupts.noted is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_outside_of_the_main_thread_nothing_is_noted() -> None:
    found: list[int | None] = []

    def look() -> None:
        with Interrupts() as interrupts:
            found.append(interrupts.noted)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(10)
    assert found == [None]


@pytest.mark.usefixtures("_ctrl_c")
def test_a_program_is_interrupted_once_and_waited_for(tmp_path: Path) -> None:
    ready, ended = tmp_path / "ready", tmp_path / "ended"
    code = (
        "import pathlib, sys, time\n"
        "try:\n    pathlib.Path(sys.argv[1]).touch(); time.sleep(300)\n"
        "except KeyboardInterrupt:\n    time.sleep(0.3); pathlib.Path(sys.argv[2]).touch()\n"
    )

    press_ctrl_c_when(ready)
    with pytest.raises(KeyboardInterrupt):
        run_to_end([sys.executable, "-c", code, str(ready), str(ended)])
    assert ended.exists()


@pytest.mark.usefixtures("_ctrl_c")
def test_a_program_that_does_not_end_is_killed_with_the_processes_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "EXIT_WAIT", 0.2)
    ready = tmp_path / "ready"
    os.mkfifo(held := tmp_path / "held")
    code = (
        "import pathlib, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '300'], stdout=open(sys.argv[2], 'wb'))\n"
        "pathlib.Path(sys.argv[1]).touch(); time.sleep(300)\n"
    )
    reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    try:
        press_ctrl_c_when(ready)
        with pytest.raises(KeyboardInterrupt):
            run_to_end([sys.executable, "-c", code, str(ready), str(held)])
        # The pipe ends when the last process that holds it is gone.
        assert select.select([reader], [], [], 10)[0]
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)


def press_ctrl_c_when(ready: Path) -> None:
    def send() -> None:
        while not ready.exists():
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=send, daemon=True).start()


def test_a_program_can_be_interrupted_where_the_shell_made_this_process_ignore_ctrl_c(tmp_path: Path) -> None:
    told = tmp_path / "told"
    code = "import pathlib, signal, sys; pathlib.Path(sys.argv[1]).write_text(str(signal.getsignal(signal.SIGINT)))"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert run_to_end([sys.executable, "-c", code, str(told)]) == 0
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert "default_int_handler" in told.read_text()
