"""Each common mistake is found on the right host; a healthy job has no findings."""

from __future__ import annotations

from itertools import permutations

import msgspec

from gradwire.doctor.findings import find
from gradwire.doctor.types import FlowResult, HostFacts, Interface, NatFacts, Reach

RATE = 12e6


def host(rank: int, **changes: object) -> HostFacts:
    address = f"10.0.0.{rank + 1}"
    interfaces = [Interface("lo", "127.0.0.1", 65536), Interface("eth0", address, 1500)]
    facts = HostFacts(rank, f"node{rank}", address, "", address, interfaces, "2.13", "0.1", "cubic", 4000, 4001)
    return msgspec.structs.replace(facts, **changes)


def healthy(count: int = 3) -> tuple[list[HostFacts], list[Reach], list[FlowResult]]:
    pairs = list(permutations(range(count), 2))
    reaches = [Reach(a, b, "", 0.001, True, 0.0, 150, 1500, 1500) for a, b in pairs]
    return [host(rank) for rank in range(count)], reaches, [FlowResult(a, b, "", RATE) for a, b in pairs]


def codes(hosts: list[HostFacts], reaches: list[Reach], flows: list[FlowResult]) -> list[str]:
    return [finding.code for finding in find(hosts, reaches, flows)]


def test_a_healthy_job_has_no_findings() -> None:
    assert find(*healthy()) == []


def test_a_hostname_that_resolves_to_loopback_is_found_and_the_fix_names_the_right_interface() -> None:
    hosts, reaches, flows = healthy()
    hosts[1] = host(1, gloo_address="127.0.1.1")
    (finding,) = find(hosts, reaches, flows)
    assert finding.code == "loopback-advertised"
    assert "rank 1 (node1)" in finding.text
    assert "GLOO_SOCKET_IFNAME=eth0 on node1" in finding.fix


def test_loopback_is_right_when_all_ranks_share_one_host() -> None:
    hosts, reaches, flows = healthy(2)
    hosts = [msgspec.structs.replace(one, route_address="127.0.0.1", gloo_address="127.0.0.1") for one in hosts]
    assert codes(hosts, reaches, flows) == []


def test_an_interface_nobody_reaches_is_an_error_and_a_reachable_one_a_warning() -> None:
    hosts, reaches, flows = healthy()
    hosts[2] = host(2, gloo_setting="docker0", gloo_address="172.17.0.1")
    (finding,) = find(hosts, reaches, flows)
    assert (finding.code, finding.severity) == ("wrong-interface", "warning")
    cut = [msgspec.structs.replace(one, gloo_reachable=one.target != 2) for one in reaches]
    (finding,) = find(hosts, cut, flows)
    assert (finding.code, finding.severity) == ("wrong-interface", "error")


def test_an_interface_that_does_not_exist_is_named_with_those_that_do() -> None:
    hosts, reaches, flows = healthy()
    hosts[0] = host(0, gloo_setting="ib0", gloo_address=None)
    (finding,) = find(hosts, reaches, flows)
    assert finding.code == "interface-missing"
    assert "lo, eth0" in finding.text


def test_a_closed_port_behind_an_open_store_is_a_firewall() -> None:
    hosts, reaches, flows = healthy()
    shut = [Reach(one.source, 2, problem="10.0.0.3:4000: no answer") if one.target == 2 else one for one in reaches]
    (finding,) = find(hosts, shut, flows)
    assert finding.code == "firewall"
    assert "rank 2 (node2)" in finding.text
    assert "rank 0, 1" in finding.text


def test_lost_large_packets_are_an_mtu_black_hole() -> None:
    hosts, reaches, flows = healthy()
    reaches[0] = msgspec.structs.replace(reaches[0], mtu=1400)
    (finding,) = find(hosts, reaches, flows)
    assert finding.code == "mtu-black-hole"
    assert "1400" in finding.fix


def test_different_versions_are_listed_with_their_ranks() -> None:
    hosts, reaches, flows = healthy()
    hosts[1] = host(1, torch="2.12")
    (finding,) = find(hosts, reaches, flows)
    assert finding.code == "torch-versions"
    assert "2.12 on ranks [1]" in finding.text


def test_filtered_udp_is_no_loss() -> None:
    hosts, reaches, flows = healthy()
    silent = [msgspec.structs.replace(one, udp_loss=1.0, mtu=None) for one in reaches]
    assert codes(hosts, silent, flows) == ["udp-filtered"]
    some = [msgspec.structs.replace(one, udp_loss=0.02) for one in reaches]
    assert codes(hosts, some, flows) == ["lossy"]


def test_one_slow_path_stands_out_of_the_median() -> None:
    hosts, reaches, flows = healthy()
    flows[3] = msgspec.structs.replace(flows[3], rate=RATE / 4)
    (finding,) = find(hosts, reaches, flows)
    assert finding.code == "slow-path"
    assert f"rank {flows[3].source} (node{flows[3].source}) to rank {flows[3].target}" in finding.text


def test_errors_come_before_warnings() -> None:
    hosts, reaches, flows = healthy()
    flows[0] = msgspec.structs.replace(flows[0], rate=RATE / 4)
    hosts[1] = host(1, torch="2.12")
    assert codes(hosts, reaches, flows) == ["torch-versions", "slow-path"]


def test_a_restart_after_idle_is_found_where_it_costs_time() -> None:
    """300 Mbit/s and 80 ms: 3 MB in flight, which a window of 14 kB reaches after eight round trips."""
    hosts, reaches, flows = healthy()
    far = [msgspec.structs.replace(one, rtt=0.08) for one in reaches]
    fast = [msgspec.structs.replace(one, rate=37.5e6) for one in flows]
    asleep = [msgspec.structs.replace(one, restarts=True) for one in hosts]
    (finding,) = find(asleep, far, fast)
    assert (finding.code, finding.severity) == ("slow-start-after-idle", "info")
    assert "tcp_slow_start_after_idle=0" in finding.fix
    assert codes(asleep, reaches, flows) == [], "one millisecond away it costs nothing"
    assert codes(hosts, far, fast) == [], "the setting is off"
    bbr = [msgspec.structs.replace(one, congestion="bbr") for one in asleep]
    assert codes(bbr, far, fast) == [], "BBR keeps its window"


def test_a_rank_behind_a_nat_is_not_taken_for_one_behind_a_firewall() -> None:
    hosts, reaches, flows = healthy()
    reaches = [msgspec.structs.replace(one, problem="no reply" if one.target == 1 else "") for one in reaches]
    assert codes(hosts, reaches, flows) == ["firewall"]
    nats = [NatFacts(0, "none"), NatFacts(1, "symmetric", "198.51.100.7"), NatFacts(2, "not known")]
    (finding,) = find(hosts, reaches, flows, nats)
    assert (finding.code, finding.severity) == ("behind-nat", "error")
    assert (
        "rank 1 (node1) is behind a symmetric NAT: others see 198.51.100.7 instead of its address 10.0.0.2"
        in finding.text
    )
    assert "GRADWIRE_ADVERTISE=198.51.100.7" in finding.fix


def test_a_nat_through_which_all_are_reached_is_only_named() -> None:
    hosts, reaches, flows = healthy()
    (finding,) = find(hosts, reaches, flows, [NatFacts(2, "full-cone", "198.51.100.7")])
    assert (finding.code, finding.severity) == ("behind-nat", "info")
