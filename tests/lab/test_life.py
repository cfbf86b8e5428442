"""Labs end with their commands, by Ctrl-C and by kill -9, and leave neither processes nor namespaces behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradwire.errors import ConfigError, IntegrityError
from gradwire.lab import Lab
from gradwire.lab.measure import ping_ms
from gradwire.lab.process import ProcessWatcher
from gradwire.network import preset
from tests.lab.conftest import pair
from tests.trials import Trial, decide

CLI = [sys.executable, "-m", "gradwire", "lab", "run", "--net", "lan100", "--hosts", "3", "--"]


def processes(marker: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if marker in text and int(path.parent.name) != os.getpid():
            found.append(int(path.parent.name))
    return found


def gone(marker: str, seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while processes(marker) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not processes(marker)


def appeared(marker: str, count: int, seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while len(processes(marker)) < count and time.monotonic() < deadline:
        time.sleep(0.05)
    return len(processes(marker)) >= count


@pytest.fixture
def marker() -> Iterator[str]:
    name = f"marker-{uuid.uuid4().hex}"
    yield name
    for pid in processes(name):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRADWIRE_RUNTIME_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def terminal() -> Iterator[None]:
    """A test run that was started by nohup ignores SIGHUP, one that was started in the background SIGINT, and so would
    what it starts."""
    before = [
        (signal.SIGHUP, signal.signal(signal.SIGHUP, signal.SIG_DFL)),
        (signal.SIGTERM, signal.signal(signal.SIGTERM, signal.SIG_DFL)),
        (signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler)),
    ]
    yield
    for number, handler in before:
        signal.signal(number, handler)


def sleeper(marker: str) -> list[str]:
    """Python that lives for minutes and has a child in another session which does too."""
    code = (
        "import subprocess, sys, time; subprocess.Popen(['sleep', '300', '0'], start_new_session=True); time.sleep(300)"
    )
    return [sys.executable, "-c", f"{code}  # {marker}"]


def test_ranks_get_what_torchrun_would_set() -> None:
    with Lab(preset("lan100", 3)) as lab:
        result = lab.run(
            ["sh", "-c", "echo $RANK $WORLD_SIZE $LOCAL_RANK $MASTER_ADDR:$MASTER_PORT $GLOO_SOCKET_IFNAME"]
        )
    assert [host.output for host in result.hosts] == [f"{r} 3 0 10.77.0.1:29500 eth0" for r in range(3)]


def test_gloo_sums_over_the_emulated_links() -> None:
    code = (
        "import torch, torch.distributed as dist; dist.init_process_group('gloo');"
        "x = torch.ones(250000) * (dist.get_rank() + 1); dist.all_reduce(x); print(x.mean().item());"
        "dist.destroy_process_group()"
    )
    with Lab(preset("lan1g", 3)) as lab:
        result = lab.run([sys.executable, "-c", code], timeout=90)
    assert result.code == 0
    assert all(host.output.splitlines()[-1] == "6.0" for host in result.hosts)
    assert sum(link.delivered_bytes for link in result.stats.links) > 3 * 1_000_000


def test_the_first_failure_is_the_exit_code_and_ends_the_rest(marker: str) -> None:
    script = f"test $RANK = 1 && exit 7; exec {sys.executable} -c 'import time; time.sleep(300)  # {marker}'"
    notes: list[str] = []
    with Lab(preset("lan100", 3), on_note=notes.append) as lab:
        result = lab.run(["sh", "-c", script], timeout=60)
    assert result.code == 7
    assert [host.ended_by_lab for host in result.hosts] == [True, False, True]
    assert any("h1 failed with code 7" in note for note in notes)
    assert gone(marker)


def test_a_rank_that_waits_for_ever_is_ended_by_the_timeout(marker: str) -> None:
    with Lab(preset("lan100", 2)) as lab:
        result = lab.run(["sh", "-c", f"test $RANK = 0 || exec sleep 300 # {marker}"], timeout=2)
    assert result.timed_out
    assert result.code == 124
    assert gone(marker)


def test_what_a_command_leaves_running_is_ended_too(marker: str) -> None:
    with Lab(preset("lan100", 2)) as lab:
        result = lab.run(
            ["sh", "-c", f"setsid {sys.executable} -c 'import time; time.sleep(300)  # {marker}' & sleep 0.2"]
        )
        assert result.code == 0
    assert gone(marker)


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_ctrl_c_sigterm_and_a_closed_terminal_take_everything_down(
    number: int, code: int, marker: str, runtime: Path
) -> None:
    lab = subprocess.Popen([*CLI, *sleeper(marker)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert appeared(marker, 4)
    lab.send_signal(number)
    output, _ = lab.communicate(timeout=30)
    assert lab.returncode == code, output
    assert gone(marker)
    assert not list(runtime.iterdir())


@pytest.mark.usefixtures("terminal")
def test_a_demo_whose_terminal_is_closed_leaves_nothing(
    marker: str, runtime: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    command = [sys.executable, "-m", "gradwire", "demo", "--out", str(tmp_path_factory.mktemp("out") / marker)]
    demo = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert appeared(marker, 5, seconds=90)  # itself and four ranks
    demo.send_signal(signal.SIGHUP)
    assert demo.wait(timeout=30) == 129
    assert gone(marker)
    assert not list(runtime.iterdir())


def test_kill_minus_nine_leaves_nothing_running_and_the_next_lab_says_so(marker: str, runtime: Path) -> None:
    lab = subprocess.Popen([*CLI, *sleeper(marker)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert appeared(marker, 4)
    lab.kill()
    lab.wait()
    assert gone(marker)
    assert len(list(runtime.glob("*.json"))) == 1
    notes: list[str] = []
    with Lab(preset("lan100", 2), on_note=notes.append) as after:
        assert after.run(["true"]).code == 0
    assert any("removed lab lan100" in note for note in notes)
    assert not list(runtime.iterdir())


def test_a_lab_whose_emulator_dies_says_so_and_ends_its_ranks(marker: str) -> None:
    with Lab(preset("lan100", 2)) as lab:
        sleep = f"exec {sys.executable} -c 'import time; time.sleep(300)  # {marker}'"
        script = f"test $RANK = 0 && kill -9 {lab.emulator.pid}; {sleep}"
        with pytest.raises(IntegrityError, match="link emulator: ended with code -9"):
            lab.run(["sh", "-c", script], timeout=60)
    assert gone(marker)


def test_an_emulator_that_did_not_read_for_a_while_counts_that_as_lateness() -> None:
    """Stopped for 300 ms while packets come every millisecond: by the moment at which each was read at last, it leaves
    on time, but it lay in its device for as long as the emulator did not look."""
    flood = (
        "import socket, sys, time; sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "for _ in range(1000): sock.sendto(b'x', (sys.argv[1], 9)); time.sleep(0.001)"
    )
    with Lab(pair(100, 1)) as lab:
        before = lab.stats()
        watch = ProcessWatcher([lab.spawn("a", [sys.executable, "-c", flood, lab.address("b")])])
        while lab.stats().since(before).received < 20:
            watch.step(0.01)
        os.kill(lab.emulator.pid, signal.SIGSTOP)
        time.sleep(0.3)
        os.kill(lab.emulator.pid, signal.SIGCONT)
        while watch.running:
            watch.step(0.05)
        watch.close()
        stats = lab.stats().since(before)
    assert "left more than 1 ms late" in stats.verdict
    assert stats.lateness_max_us > 100_000


def test_two_labs_at_once_are_isolated() -> None:
    def trial(run: Trial) -> None:
        with Lab(pair(100, 5)) as one, Lab(pair(100, 20)) as two, run.measures_in(one), run.measures_in(two):
            assert one.address("b") == two.address("b")
            assert min(ping_ms(one, "a", "b", 3, 0.02)) < 20
            assert min(ping_ms(two, "a", "b", 3, 0.02)) >= 39

    decide(trial)


def test_no_named_namespace_is_made() -> None:
    before = sorted(os.listdir("/run/netns")) if os.path.isdir("/run/netns") else []
    with Lab(preset("lan100", 2)):
        inside = sorted(os.listdir("/run/netns")) if os.path.isdir("/run/netns") else []
    assert inside == before


def test_an_unknown_congestion_control_says_which_there_are() -> None:
    with (
        pytest.raises(ConfigError, match=r"'westwoodx' cannot be used here; this machine has .*cubic"),
        Lab(pair(congestion="westwoodx")),
    ):
        pass


@pytest.mark.parametrize("name", ["cubic", "reno"])
def test_each_host_has_the_congestion_control_it_was_given(name: str) -> None:
    with Lab(pair(congestion=name)) as lab:
        result = lab.run(["cat", "/proc/sys/net/ipv4/tcp_congestion_control"])
    assert {host.output for host in result.hosts} == {name}


def test_a_command_that_does_not_exist_is_named() -> None:
    with Lab(preset("lan100", 2)) as lab:
        result = lab.run(["no-such-program"])
    assert result.code == 127
    assert "cannot run no-such-program" in result.hosts[0].output


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare to give up root")
def test_a_user_without_root_gets_a_lab_in_a_user_namespace() -> None:
    run = [*CLI[:-1], "--congestion", "reno", "--mode", "namespaces", "--"]
    words = ["unshare", "--user", "--map-user=1000", "--map-group=1000", *run, "sh", "-c", "id -u; ping -qc1 h2 >&2"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    if "user namespaces are not allowed" in done.stderr or done.returncode == 1:
        pytest.skip(f"this machine allows no user namespaces: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
    assert "unprivileged user namespace" in done.stderr
    assert {f"h{rank} | 1000" for rank in range(3)} <= set(done.stdout.splitlines())
