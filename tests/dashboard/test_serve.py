"""gradwire dashboard as a program: prints its address, ends on Ctrl-C, releases its port."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from gradwire.observe.sample import SampleShape, write


def start(*arguments: str) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "gradwire", "dashboard", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_it_prints_its_address_and_ends_with_ctrl_c_while_a_page_is_open(tmp_path: Path, host: str) -> None:
    write(tmp_path / "run", SampleShape(ranks=2, seconds=5.0))
    process, said = start(str(tmp_path), "--host", host, "--port", "0")
    try:
        found = re.search(r"http://[\d.]+:(\d+)/(\?token=\S+)?", said)
        assert found, said
        assert bool(found[2]) == (host == "0.0.0.0")
        address = f"http://127.0.0.1:{found[1]}"
        with httpx.Client(follow_redirects=True) as client:
            assert "gradwire" in client.get(f"{address}/{found[2] or ''}").text
            with client.stream("GET", address + "/api/live") as stream:
                assert stream.status_code == 200
                process.send_signal(signal.SIGINT)
                process.wait(10)
    finally:
        process.kill()
        _, complaints = process.communicate()
    assert process.returncode in (0, 130)
    assert "Traceback" not in complaints
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", int(found[1])))


def test_a_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    write(tmp_path / "run", SampleShape(ranks=2, seconds=5.0))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        command = [sys.executable, "-m", "gradwire", "dashboard", str(tmp_path), "--port", str(taken.getsockname()[1])]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=dict(os.environ))
    assert result.returncode == 2
    assert "--port" in result.stderr
    assert "Traceback" not in result.stderr
