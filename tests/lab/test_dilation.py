"""In dilated time a rank's clocks, waits and network agree with each other, and with the undilated network.

The scripts compare the rank's clock with the machine's, which a raw system call returns: their ratio is the factor,
however long something takes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradwire.config import resolve
from gradwire.errors import ConfigError
from gradwire.lab import Lab
from gradwire.lab.dilation import FACTOR_VARIABLE, TCP_TIMES, Dilation, current
from gradwire.lab.emulator_config import compile_network
from gradwire.lab.measure import run_on, wanted_mbit
from gradwire.network import Change, Network, preset
from gradwire.network.network import as_hosts, both
from gradwire.units import Rate, Seconds
from tests.lab.conftest import pair
from tests.lab.scripts import PROBE
from tests.trials import Trial, decide

MACHINE = """
import ctypes, platform
libc = ctypes.CDLL(None)
number = {"x86_64": 228, "aarch64": 113}[platform.machine()]
def machine():
    stamp = (ctypes.c_long * 2)()
    libc.syscall(number, 1, stamp)
    return stamp[0] + stamp[1] * 1e-9
"""

WAITS = (
    MACHINE
    + """
import json, queue, select, socket, struct, threading, time
here, there = socket.socketpair()
condition, WAIT = threading.Condition(), 0.05
def in_condition():
    with condition:
        condition.wait(WAIT)
def in_epoll():
    with select.epoll() as poll:
        poll.register(here, select.EPOLLIN)
        poll.poll(WAIT)
def in_poll():
    poll = select.poll()
    poll.register(here, select.POLLIN)
    poll.poll(WAIT * 1e3)
def receiving(sock):
    try:
        sock.recv(1)
    except (TimeoutError, BlockingIOError):
        pass
def in_socket():
    here.settimeout(WAIT)
    receiving(here)
def in_kernel():
    there.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, round(WAIT * 1e6)))
    receiving(there)
def in_queue():
    try:
        queue.Queue().get(timeout=WAIT)
    except queue.Empty:
        pass
waits = {
    "sleep": lambda: time.sleep(WAIT), "select": lambda: select.select([here], [], [], WAIT), "queue": in_queue,
    "lock": lambda: (lock := threading.Lock()).acquire() and lock.acquire(timeout=WAIT), "condition": in_condition,
    "epoll": in_epoll, "poll": in_poll, "socket timeout": in_socket, "SO_RCVTIMEO": in_kernel,
}
found = {}
for name, wait in waits.items():
    before, began = machine(), time.monotonic()
    wait()
    found[name] = (time.monotonic() - began, machine() - before)
print(json.dumps(found))
"""
)

CLOCKS = (
    MACHINE
    + """
import json, time
def read():
    return [machine(), time.monotonic(), time.perf_counter(), time.time(), time.process_time()]
before = read()
end = time.process_time() + 0.05
while time.process_time() < end:
    pass
time.sleep(0.2)
print(json.dumps([b - a for a, b in zip(before, read())]))
"""
)


def preloaded(script: str, factor: float) -> subprocess.CompletedProcess[str]:
    dilation = Dilation(factor)
    variables = {**dilation.environment(), "LD_PRELOAD": dilation.library()}
    return subprocess.run(
        [sys.executable, "-c", script], env=variables, capture_output=True, text=True, timeout=60, check=True
    )


def test_every_wait_lasts_longer_by_the_factor() -> None:
    for name, (seen, real) in json.loads(preloaded(WAITS, 4).stdout).items():
        assert real / seen == pytest.approx(4, rel=0.02), name
        assert seen >= 0.049, name  # it waited for the whole time, not for a quarter of it


def test_clocks_run_slower_and_processor_time_does_not() -> None:
    real, monotonic, performance, wall, processor = json.loads(preloaded(CLOCKS, 8).stdout)
    for shown in (monotonic, performance, wall):
        assert real / shown == pytest.approx(8, rel=0.02)
    assert processor >= 0.05


def test_times_convert_both_ways_and_hosts_share_a_clock() -> None:
    dilation = Dilation(4, origin=100.0)
    assert dilation.seconds(8.0) == 2.0
    assert dilation.real(2.0) == 8.0
    assert dilation.clock(100.0) == 100.0
    assert dilation.clock(108.0) == 102.0


def test_real_time_needs_neither_variables_nor_a_library() -> None:
    assert not Dilation().environment()
    assert not Dilation().library()
    assert not Dilation().tcp_settings()


def test_tcp_times_that_the_kernel_has_are_stretched(tmp_path: Path) -> None:
    (tmp_path / "tcp_rto_min_us").touch()
    assert Dilation(4).tcp_settings(tmp_path) == {"tcp_rto_min_us": 800_000}


def test_the_factor_of_the_surrounding_lab_is_read_from_one_variable() -> None:
    assert current({}) == 1
    assert current(Dilation(4).environment()) == 4
    with pytest.raises(ConfigError, match=f"^{FACTOR_VARIABLE}: "):
        current({FACTOR_VARIABLE: "fast"})
    assert resolve(None, Dilation(4).environment()) == resolve(None, {})  # no unknown setting for gradwire


@pytest.mark.parametrize("factor", [0, -1, float("nan"), 1e6])
def test_a_lab_refuses_a_bad_factor(factor: float) -> None:
    with pytest.raises(ConfigError, match=r"^dilate: must be a number from 1"):
        Lab(preset("lan100", 2), dilate=factor)


def test_the_emulator_gets_stretched_values_and_the_undilated_routes() -> None:
    network = preset("wan-us-eu", 4)
    plain, stretched = compile_network(network), compile_network(network, 4, {"tcp_rto_min_us": 800_000})
    assert [line for line in plain if line.startswith("route")] == [
        line for line in stretched if line.startswith("route")
    ]
    trunk = next(line for line in stretched if line.startswith("link"))
    assert "rate=9375000.0 delay=160000000 jitter=1200000 " in trunk
    assert "queue=3000000.0" in trunk
    assert trunk.endswith("jitter_memory=200000000")
    assert stretched[0] == plain[0] + " tcp_rto_min_us=800000"


FACTS = (
    MACHINE
    + """
import json, os, sys, time
print(json.dumps({
    "factor": os.environ.get("GRADWIRE_DILATE"),
    "since_start": time.monotonic() - float(os.environ["GRADWIRE_LAB_START"]),
    "settings": {name: int(open(f"/proc/sys/net/ipv4/{name}").read()) for name in sys.argv[1:]},
}))
time.sleep(0.2)
"""
)


def test_ranks_results_and_the_hosts_tcp_are_dilated() -> None:
    network = preset("lan100", 2)
    began = time.monotonic()
    with Lab(network, dilate=4) as lab:
        expected = lab.dilation.tcp_settings()
        result = lab.run([sys.executable, "-c", FACTS, *expected], timeout=60)
    real = time.monotonic() - began
    assert result.code == 0, result.hosts[0].output
    assert lab.network == network
    assert result.dilate == result.stats.dilate == 4
    assert 0.2 <= result.seconds <= real / 4
    for host in result.hosts:
        facts = json.loads(host.output)
        assert facts["factor"] == "4"
        assert 0 <= facts["since_start"] <= result.seconds
        assert facts["settings"] == {name: 4 * TCP_TIMES[name] for name in expected}
        assert host.seconds <= result.seconds


def test_the_networks_own_factor_is_used_unless_another_is_given() -> None:
    network = Network("x", as_hosts("ab"), both("a", "b", pair().links[0].spec), dilate=2)
    assert Lab(network).dilation.factor == 2
    assert Lab(network, dilate=1).dilation.factor == 1


def test_a_timeout_is_undilated() -> None:
    with Lab(preset("lan100", 2), dilate=2) as lab:
        began = time.monotonic()
        result = lab.run(["sleep", "60"], timeout=0.5)
        assert time.monotonic() - began >= 1.0
    assert result.timed_out


def test_ranks_see_the_undilated_delay_and_the_change_at_its_time() -> None:
    network = pair(100, delay_ms=10)
    network = Network(
        "pair", network.hosts, network.links, changes=(Change(Seconds(0.8), "a->b", delay=Seconds(0.03)),)
    )

    def trial(run: Trial) -> None:
        with Lab(network, dilate=4) as lab, run.measures_in(lab):
            result = lab.run([sys.executable, "-c", PROBE, "1.5", lab.address("b")], timeout=60)
        rows = [tuple(map(float, line.split())) for line in result.hosts[1].output.splitlines()]
        early = sorted(delay for sent, delay in rows if sent < 0.75)
        late = sorted(delay for sent, delay in rows if sent > 0.85)
        assert early[len(early) // 2] == pytest.approx(0.010, abs=0.0015)
        assert late[len(late) // 2] == pytest.approx(0.030, abs=0.0015)

    decide(trial)


SATURATE = """
import json, os, socket, struct, time
# Rank 0 sends for two seconds; rank 1 prints its goodput, rank 0 what the kernel says.
if os.environ["RANK"] == "1":
    server = socket.create_server(("", 7001))
    sock, _ = server.accept()
    began, got = None, 0
    while chunk := sock.recv(1 << 16):
        began = began or time.perf_counter()
        got += len(chunk)
    print(json.dumps({"mbit": got * 8e-6 / (time.perf_counter() - began)}))
else:
    while True:
        try:
            sock = socket.create_connection((os.environ["PEER"], 7001))
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
    end = time.perf_counter() + 2
    while time.perf_counter() < end:
        sock.send(bytes(1 << 16))
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    print(json.dumps({"min_rtt": struct.unpack_from("I", info, 148)[0] / 1e6,
                      "mbit": struct.unpack_from("Q", info, 160)[0] * 8e-6}))
    sock.close()
"""


def test_tcp_and_what_the_kernel_says_of_it_are_undilated() -> None:
    network = pair(80, delay_ms=10, queue=400_000)

    def trial(run: Trial) -> None:
        with Lab(network, dilate=4) as lab, run.measures_in(lab):
            result = lab.run([sys.executable, "-c", SATURATE], env={"PEER": lab.address("b")}, timeout=60)
        kernel, receiver = (json.loads(host.output) for host in result.hosts)
        wanted = wanted_mbit([network.links[0].spec], network.overhead)
        assert receiver["mbit"] == pytest.approx(wanted, rel=0.1)  # slow start included
        assert kernel["mbit"] == pytest.approx(wanted, rel=0.1)
        assert kernel["min_rtt"] == pytest.approx(0.0202, rel=0.1)

    decide(trial)


STEPS = """
import json, os, socket, statistics, time
# A step: both ranks compute for 30 ms, send 50 kB to each other and wait for the other's.
SIZE = 50_000
if os.environ["RANK"] == "1":
    sock, _ = socket.create_server(("", 7001)).accept()
else:
    while True:
        try:
            sock = socket.create_connection((os.environ["PEER"], 7001))
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
times = []
for _ in range(25):
    began = time.perf_counter()
    time.sleep(0.03)
    sock.sendall(bytes(SIZE))
    left = SIZE
    while left:
        left -= len(sock.recv(left))
    times.append(time.perf_counter() - began)
print(json.dumps(statistics.median(times[5:])))
"""


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_a_step_takes_the_same_undilated_time_at_every_factor(factor: float) -> None:
    network = pair(20, delay_ms=5)

    def trial(run: Trial) -> None:
        medians = []
        for used in (1, factor):
            with Lab(network, dilate=used) as lab, run.measures_in(lab):
                result = lab.run([sys.executable, "-c", STEPS], env={"PEER": lab.address("b")}, timeout=60)
            medians.append(json.loads(result.hosts[0].output))
        assert medians[1] / medians[0] == pytest.approx(1, abs=0.05)

    decide(trial)


def test_changes_applied_by_hand_are_undilated_too() -> None:
    def trial(run: Trial) -> None:
        with Lab(pair(100, delay_ms=1), dilate=4) as lab, run.measures_in(lab):
            lab.apply(Change(Seconds(0), "a->b", rate=Rate.from_mbit(100), delay=Seconds(0.02)))
            output = run_on(lab, "a", ["ping", "-n", "-c", "3", "-i", "0.2", lab.address("b")], 30).output
        times = sorted(float(line.split("time=")[1].split()[0]) for line in output.splitlines() if "time=" in line)
        assert times[1] == pytest.approx(4 * 21, rel=0.05)  # ping's clock is the machine's

    decide(trial)


def test_loopback_mode_is_dilated_too() -> None:
    with Lab(preset("lan100", 2), mode="loopback", dilate=4) as lab:
        env = lab.rank_env(0)
        assert int(env["GRADWIRE_PACE_BYTES"]) == pytest.approx(12.5e6 / 4 * 1448 / 1538, rel=0.01)
        assert env["LD_PRELOAD"].count("libgradwire-") == 2
        result = lab.run([sys.executable, "-c", FACTS], timeout=60)
    assert [json.loads(host.output)["factor"] for host in result.hosts] == ["4", "4"]
