"""The emulator's commands contain the network's values."""

from __future__ import annotations

import pytest

from gradwire.errors import ConfigError
from gradwire.lab.emulator_config import MAX_HOSTS, address, compile_network
from gradwire.network import Burst, Change, Host, LinkSpec, Nat, Network, RateTrace, preset
from gradwire.network.network import as_hosts, both
from gradwire.units import Bytes, Rate, Seconds


def test_lines_carry_every_value_in_the_emulators_units() -> None:
    spec = LinkSpec(Rate.from_mbit(80), Seconds(0.005), Seconds(0.001), 0.01, Burst(0.1, 0.5, 0.9), Bytes(50_000), 1400)
    traced = LinkSpec(trace=RateTrace((0.0, 0.5), (1e6, 0.0), 1.0))
    network = Network(
        "x",
        as_hosts("ab"),
        both("a", "b", spec, traced),
        changes=(Change(Seconds(1.5), "a->b", Rate(1000.0), loss=0.5),),
        seed=2,
    )
    lines = compile_network(network)
    assert lines[0] == "host a 10.77.0.1 16 1400 cubic"
    assert lines[1] == "host b 10.77.0.2 16 1500 cubic"
    assert lines[2] == (
        "link 2000006 38 rate=10000000.0 delay=5000000 jitter=1000000 loss=0.01 reorder=0.0 reorder_by=1000000 "
        "duplicate=0.0 queue=50000.0 mtu=1400 burst_enter=0.1 burst_leave=0.5 burst_loss=0.9"
    )
    assert lines[3].startswith("link 2000007 38 rate=inf ")
    assert "trace 1 1000000000 0:1e+06 500000000:0" in lines
    assert "route 0 1 0" in lines
    assert "route 1 0 1" in lines
    assert "change 1500000000 0 rate=1000.0 loss=0.5" in lines


def test_reordering_and_duplication_reach_the_emulator() -> None:
    spec = LinkSpec(reorder=0.02, reorder_by=Seconds(0.003), duplicate=0.01)
    change = Change(Seconds(1), "a->b", reorder=0.5, reorder_by=Seconds(0.01), duplicate=0.25)
    lines = compile_network(Network("x", as_hosts("ab"), both("a", "b", spec, spec), changes=(change,)))
    assert "reorder=0.02 reorder_by=3000000 duplicate=0.01" in lines[2]
    assert "change 1000000000 0 reorder=0.5 duplicate=0.25 reorder_by=10000000" in lines


def test_a_host_behind_a_nat_has_a_private_address_and_its_mappings_are_dilated() -> None:
    hosts = (Host("a"), Host("b", nat=Nat("symmetric", Seconds(30), (29500, 29600))))
    network = Network("x", hosts, both("a", "b", LinkSpec()), seed=2)
    lines = compile_network(network, factor=2)
    assert lines[:2] == ["host a 10.77.0.1 16 1500 cubic", "host b 192.168.2.2 24 1500 cubic"]
    assert lines[2] == "nat 1 symmetric 10.77.0.2 60000000000 2000007 29500 29600"


def test_an_empty_change_and_too_many_hosts_are_refused() -> None:
    network = preset("lan100")
    with pytest.raises(ConfigError, match="changes nothing"):
        compile_network(Network("x", network.hosts, network.links, network.routers, (Change(Seconds(1), "*"),)))
    many = as_hosts(f"n{i}" for i in range(MAX_HOSTS + 1))
    with pytest.raises(ConfigError, match="200 at most, not 201"):
        compile_network(Network("x", many, ()))


def test_addresses_are_all_different() -> None:
    assert len({address(i) for i in range(MAX_HOSTS)}) == MAX_HOSTS
