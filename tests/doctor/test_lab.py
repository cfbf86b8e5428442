"""The doctor in the lab: it measures the network and finds the mistake that was made."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from typing import Any

import pytest

from gradwire.lab import Lab, NoPrivilegesError
from gradwire.network import Nat, Network, preset
from gradwire.network.nat import NAT_KINDS, NatKind
from gradwire.units import Rate, Seconds
from tests.trials import Trial, decide

pytestmark = [pytest.mark.lab, pytest.mark.skipif(shutil.which("ip") is None, reason="needs iproute2")]

DOCTOR = [sys.executable, "-m", "gradwire", "doctor", "--json", "--strict", "--seconds", "1.2"]
# Where the rate does not matter.
QUICK = [*DOCTOR[:-1], "0.3"]
MBIT, ONE_WAY_MS = 40.0, 10.0
# 1448 of 1538 bytes of a full packet are payload.
GOODPUT = MBIT * 1448 / 1538


def slow_star(hosts: int) -> Network:
    """Every access link with the rate and the delay above; a round trip crosses four of them."""
    base = preset("lan100", hosts)
    links = tuple(
        replace(link, spec=replace(link.spec, rate=Rate.from_mbit(MBIT), delay=Seconds(ONE_WAY_MS / 1e3)))
        for link in base.links
    )
    return replace(base, name="slow-star", links=links)


def examine(network: Network, command: list[str], run: Trial | None = None) -> tuple[int, dict[str, Any]]:
    try:
        with Lab(network) as lab:
            result = lab.run(command, timeout=90)
    except NoPrivilegesError as error:
        pytest.skip(str(error))
    if run is not None:
        run.saw(result.stats)
    lines = [line for line in result.hosts[0].output.splitlines() if line.startswith("{")]
    assert lines, "\n".join(host.output for host in result.hosts)
    return result.code, json.loads(lines[-1])


def as_it_is(report: dict[str, Any]) -> bool:
    wanted = 4 * ONE_WAY_MS / 1e3
    # The shortest of many round trips: never below the path's own, and a busy machine adds only a little.
    near = all(wanted <= reach["rtt"] <= 1.5 * wanted for reach in report["reaches"])
    return near and all(0.8 * GOODPUT <= flow["rate"] * 8 / 1e6 <= 1.1 * GOODPUT for flow in report["flows"])


def test_it_measures_the_rate_and_the_round_trip_of_every_pair() -> None:
    def trial(run: Trial) -> None:
        code, report = examine(slow_star(3), DOCTOR, run)
        assert code == 0
        assert len(report["reaches"]) == len(report["flows"]) == 6
        assert {reach["mtu"] for reach in report["reaches"]} == {1500}
        # The lab's hosts use CUBIC and the kernel's default for pauses: 135 packets in flight begin with ten again.
        assert [finding["code"] for finding in report["findings"]] == ["slow-start-after-idle"]
        assert as_it_is(report), report

    decide(trial)


def test_it_spots_the_host_that_advertises_the_wrong_interface() -> None:
    wrong = 'if [ "$RANK" = 1 ]; then export GLOO_SOCKET_IFNAME=lo; fi; exec "$@"'
    code, report = examine(slow_star(3), ["sh", "-c", wrong, "sh", *QUICK])
    assert code == 1
    found = [finding for finding in report["findings"] if finding["severity"] == "error"]
    assert [finding["code"] for finding in found] == ["loopback-advertised"]
    assert "rank 1 (h1)" in found[0]["text"]
    assert "GLOO_SOCKET_IFNAME=eth0 on h1" in report["recommendation"]


def test_it_finds_a_black_hole_for_large_packets() -> None:
    """The link from the switch to h1 carries less than the hosts' interfaces send, and nobody says so."""
    base = slow_star(2)
    links = tuple(
        replace(link, spec=replace(link.spec, mtu=1300)) if link.name == "switch->h1" else link for link in base.links
    )
    code, report = examine(replace(base, links=links), QUICK)
    assert code == 1
    holes = [finding for finding in report["findings"] if finding["code"] == "mtu-black-hole"]
    assert len(holes) == 1
    assert "rank 0 (h0)" in holes[0]["text"]
    (reach,) = [reach for reach in report["reaches"] if reach["target"] == 1]
    assert 1290 <= reach["mtu"] <= 1300


@pytest.mark.parametrize("kind", NAT_KINDS)
def test_it_says_which_kind_of_nat_a_rank_is_behind(kind: NatKind) -> None:
    network = preset("lan100", 2)
    hidden = replace(network.hosts[1], nat=Nat(kind))
    _, report = examine(replace(network, hosts=(network.hosts[0], hidden)), QUICK)
    assert [nat["kind"] for nat in report["nats"]] == ["not known", kind]
    (finding,) = (one for one in report["findings"] if one["severity"] == "error")
    assert finding["code"] == "behind-nat"
    assert f"rank 1 (h1) is behind a {kind} NAT" in finding["text"]
