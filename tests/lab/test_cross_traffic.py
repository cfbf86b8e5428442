"""Cross traffic starts and stops on time and takes its share; netem, if available, agrees with the emulator."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from gradwire.lab import Lab
from gradwire.lab.measure import ping_ms
from gradwire.network import CrossTraffic
from gradwire.units import Rate, Seconds
from tests.lab.conftest import pair
from tests.lab.scripts import PROBE
from tests.trials import Trial, decide


def test_cross_traffic_fills_the_link_between_its_start_and_stop() -> None:
    """A flow of 8 Mbit/s on a link of 10 for three seconds of five: three megabytes, and nothing after the stop; less
    where the machine is busy and the program that sends begins late."""
    flow = CrossTraffic("a", "b", Seconds(0.5), Seconds(3.5), protocol="udp", rate=Rate.from_mbit(8))
    network = replace(pair(10, 1), cross=(flow,))

    def trial(run: Trial) -> None:
        with Lab(network) as lab:
            result = lab.run(["sleep", "5"], timeout=20)
        run.saw(result.stats)
        assert result.code == 0
        assert 1.5 <= result.stats.links[0].delivered_bytes / 1e6 <= 3.6

    decide(trial)


def test_many_tcp_flows_delay_a_probe_by_the_queue_they_fill() -> None:
    flow = CrossTraffic("a", "b", Seconds(0), flows=4, congestion="cubic")
    network = replace(pair(20, 1, queue=100_000), cross=(flow,))  # 40 ms of queue

    def trial(run: Trial) -> None:
        with Lab(network) as lab:
            result = lab.run([sys.executable, "-c", PROBE, "5", lab.address("b")], timeout=30)
        run.saw(result.stats)
        rows = [tuple(map(float, line.split())) for line in result.hosts[1].output.splitlines()]
        late = [delay for sent, delay in rows if sent > 3]
        assert len(late) > 50
        assert 0.01 < sorted(late)[len(late) // 2] < 0.06
        assert result.stats.links[0].queue_drops > 0

    decide(trial)


def netem_missing() -> str:
    """Try it in a namespace of its own that is gone a moment later."""
    if shutil.which("tc") is None or shutil.which("unshare") is None:
        return "no tc"
    words = ["unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=20)
    return done.stderr.strip()


def netem_median() -> float:
    script = "ip link set lo up; tc qdisc add dev lo root netem delay 10ms; ping -n -c 11 -i 0.02 127.0.0.1"
    words = ["unshare", "--net", "sh", "-c", script]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=30)
    return sorted(float(line.split("time=")[1].split()[0]) for line in done.stdout.splitlines() if "time=" in line)[5]


def test_netem_and_the_emulator_delay_alike() -> None:
    if reason := netem_missing():
        pytest.skip(f"this kernel has no netem: {reason}")

    def trial(run: Trial) -> None:
        with Lab(pair(1000, 10)) as lab, run.measures_in(lab):
            ours = sorted(ping_ms(lab, "a", "b"))[5]
        assert ours == pytest.approx(netem_median(), abs=1.0)

    decide(trial)
