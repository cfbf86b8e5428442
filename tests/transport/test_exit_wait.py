"""The end of a process waits for backends' threads that still hold a function of ours."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from pathlib import Path

from gradwire.transport.exit_wait import lend, wait_until_quiet

ENDING = """
import atexit, threading, time, weakref

known = []
atexit.register(lambda: print("let go" if known[0]() is None else "still held"))  # after what gradwire registers

from gradwire.transport.exit_wait import lend

class Backend:
    def __init__(self):
        self.function = lend(lambda: None)

backend = Backend()
known.append(weakref.ref(backend.function))

def late():
    time.sleep(1.0)
    backend.function = None

threading.Thread(target=late, daemon=True).start()
"""


def test_a_function_is_counted_until_it_is_let_go_of() -> None:
    function = lend(lambda: None)
    assert not wait_until_quiet(0.1)
    del function
    assert wait_until_quiet(60.0)


def test_a_backends_thread_at_work_is_waited_for() -> None:
    stop, named = threading.Event(), threading.Event()

    def work() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("pt_gloo_runloop")
        named.set()
        while not stop.is_set():
            hashlib.sha256(bytes(8 << 20))  # runs without the interpreter's lock

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert named.wait(60.0)
        assert not wait_until_quiet(0.5)
    finally:
        stop.set()
        thread.join()
    assert wait_until_quiet(60.0)


def test_a_wait_ends_as_soon_as_another_thread_lets_go() -> None:
    held = [lend(lambda: None)]
    timer = threading.Timer(0.05, held.clear)
    timer.start()
    assert wait_until_quiet(60.0)
    timer.join()


def test_the_end_of_a_process_waits() -> None:
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "let go\n", done.stderr
