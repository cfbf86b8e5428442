"""A network with IPv6 addresses: the same link model, and every wire of gradwire over it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gradwire.errors import ConfigError
from gradwire.lab import Lab
from gradwire.lab.measure import measure, tcp_mbit
from gradwire.network import Network, preset
from tests.lab.conftest import pair
from tests.lab.test_udp_blocked import TRAIN
from tests.lab.test_wires import SUM
from tests.trials import Trial, decide


def pair6(mbit: float = 100, delay_ms: float = 0, loss: float = 0) -> Network:
    return replace(pair(mbit, delay_ms, loss), ipv6=True)


def test_a_host_has_one_address_and_finds_the_others_by_name() -> None:
    program = "ip -o addr show dev eth0 | awk '{print $4}'; getent hosts a | awk '{print $1}'; echo $MASTER_ADDR"
    with Lab(pair6()) as lab:
        assert lab.address("b") == "fd77::2"
        hosts = lab.run(["sh", "-c", program], timeout=30).hosts
    assert [host.output.split() for host in hosts] == [[f"fd77::{i}/64", "fd77::1", "fd77::1"] for i in (1, 2)]


def test_rate_and_delay_are_those_of_the_links() -> None:
    def trial(run: Trial) -> None:
        with Lab(pair6(50, 10)) as lab:
            row = measure(lab, "a", "b", seconds=2)
            stats = lab.stats()
        run.saw(stats)
        assert row.rtt_good, row
        assert row.rate_good, row
        # Super-packets are counted as the packets on the wire that they stand for.
        there = stats.links[0]
        assert 1400 < there.offered_bytes / there.offered <= 1500 + 38
        assert there.mtu_drops == 0

    decide(trial)


def test_losses_hit_single_packets_of_a_super_packet() -> None:
    with Lab(pair6(100, 0.5, loss=0.01)) as lab:
        tcp_mbit(lab, "a", "b", "-C", "bbr", seconds=2)
        there = lab.stats().links[0]
    assert there.loss_drops / there.offered == pytest.approx(0.01, rel=0.3)


@pytest.mark.parametrize(("wire", "protocol"), [("ltp", "UDP"), ("tcp", "TCP")])
def test_each_wire_connects_over_ipv6(wire: str, protocol: str) -> None:
    with Lab(pair6(100, 5)) as lab:
        result = lab.run([sys.executable, "-c", SUM], {"GRADWIRE_WIRE": wire}, timeout=60)
    first = result.hosts[0].output
    assert result.code == 0, first
    assert "address fd77::1" in first
    assert f"{protocol} to rank 1" in first


def test_torchrun_trains_over_ltp(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    job = (
        f"exec env GRADWIRE_TRANSPORT=ltp GRADWIRE_LEVEL=int8 {sys.executable} -m torch.distributed.run --nnodes 2 "
        "--nproc-per-node 1 --node-rank $RANK --master-addr $MASTER_ADDR --master-port $MASTER_PORT "
        f"-m gradwire.run {script}"
    )
    with Lab(replace(preset("lan100", 2), ipv6=True)) as lab:
        result = lab.run(["sh", "-c", job], timeout=120)
    for host in result.hosts:
        assert "equal True" in host.output
        assert "not possible" not in host.output  # no fallback to TCP


def test_what_ipv6_cannot_have_is_refused() -> None:
    links = tuple(replace(link, spec=replace(link.spec, mtu=1000)) for link in pair().links)
    with pytest.raises(ConfigError, match=r"link a->b: mtu 1000 is too small for ipv6; use 1280 or more"):
        replace(pair(), links=links, ipv6=True)
    with pytest.raises(ConfigError, match="ipv6: loopback mode has none"), Lab(pair6(), mode="loopback"):
        pass
