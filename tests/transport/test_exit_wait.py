"""Process exit waits for backend threads that still hold a tracked function."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from pathlib import Path

from gradwire.transport.exit_wait import track, wait_for_backend_threads

ENDING = """
import atexit, threading, time, weakref

known = []
atexit.register(lambda: print("released" if known[0]() is None else "still held"))  # after what gradwire registers

from gradwire.transport.exit_wait import track

class Backend:
    def __init__(self):
        self.function = track(lambda: None)

backend = Backend()
known.append(weakref.ref(backend.function))

def late():
    time.sleep(1.0)
    backend.function = None

threading.Thread(target=late, daemon=True).start()
"""


def test_a_function_is_tracked_until_it_is_released() -> None:
    function = track(lambda: None)
    assert not wait_for_backend_threads(0.1)
    del function
    assert wait_for_backend_threads(60.0)


def test_a_running_backend_thread_is_waited_for() -> None:
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
        assert not wait_for_backend_threads(0.5)
    finally:
        stop.set()
        thread.join()
    assert wait_for_backend_threads(60.0)


def test_the_wait_ends_as_soon_as_another_thread_releases_the_function() -> None:
    held = [track(lambda: None)]
    timer = threading.Timer(0.05, held.clear)
    timer.start()
    assert wait_for_backend_threads(60.0)
    timer.join()


def test_process_exit_waits_for_a_late_release() -> None:
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "released\n", done.stderr
