"""Launch: run a training command once per rank on this machine and follow what rank 0 reports.

Whatever happens, the processes are gone when the generator ends.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from gradwire.errors import LinkError


def follow(arguments: Sequence[str], ranks: int, timeout: float = 600.0) -> Iterator[dict[str, Any]]:
    """Start `python -m gradwire.demo.train ARGUMENTS` on every rank and yield rank 0's reports."""
    with tempfile.TemporaryFile("w+") as errors:
        workers = [_start(arguments, rank, ranks, port, errors) for port in [_free_port()] for rank in range(ranks)]
        watchdog = threading.Timer(timeout, _stop, [workers])
        watchdog.start()
        try:
            output = workers[0].stdout
            assert output is not None
            for line in output:
                yield json.loads(line)
            codes = [worker.wait(timeout=30) for worker in workers]
            if any(codes):
                errors.seek(0)
                raise LinkError(f"training failed with exit codes {codes}:\n{errors.read()[-2000:]}")
        finally:
            watchdog.cancel()
            _stop(workers)


def _start(arguments: Sequence[str], rank: int, ranks: int, port: int, errors: Any) -> subprocess.Popen[str]:
    environment = os.environ | {
        "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR",
    }  # fmt: skip
    command = [sys.executable, "-m", "gradwire.demo.train", *arguments]
    output = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
    return subprocess.Popen(command, env=environment, stdout=output, stderr=errors, text=True, start_new_session=True)


def _stop(workers: Sequence[subprocess.Popen[str]]) -> None:
    """Ask, wait, insist."""
    for worker in workers:
        if worker.poll() is None:
            worker.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + 3
    for worker in workers:
        try:
            worker.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait(timeout=5)
    if workers[0].stdout is not None:
        workers[0].stdout.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
