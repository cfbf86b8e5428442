"""Probes against a responder on loopback; connections without the token are closed."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import msgspec
import pytest

from gradwire.doctor import probe
from gradwire.doctor.host_facts import gloo_address, interfaces, route_address
from gradwire.doctor.probe_protocol import ProbeRequest
from gradwire.doctor.responder import Responder, rate_after
from gradwire.doctor.types import HostFacts, Interface
from gradwire.errors import LinkError

TOKEN = "ab" * 16


@pytest.fixture
def peer() -> Iterator[HostFacts]:
    responder = Responder(1, TOKEN)
    yield HostFacts(
        1, "peer", "127.0.0.1", "", "127.0.0.1", [Interface("lo", "127.0.0.1", 65536)], "", "", "",
        responder.tcp_port, responder.udp_port,
    )  # fmt: skip
    responder.close()


@pytest.fixture
def me() -> HostFacts:
    return HostFacts(0, "me", "127.0.0.1", "", "127.0.0.1", [Interface("lo", "127.0.0.1", 1500)], "", "", "", 0, 0)


def test_a_peer_on_loopback_is_reached_without_loss(me: HostFacts, peer: HostFacts) -> None:
    found = probe.reach(me, peer, TOKEN)
    assert found.problem == ""
    assert found.rtt is not None
    assert found.gloo_reachable is True
    assert found.udp_loss is not None
    assert found.udp_loss < 0.5
    assert found.mtu == 1500


def test_a_transfer_stops_at_its_bytes_and_reports_a_rate(me: HostFacts, peer: HostFacts) -> None:
    flow = probe.bulk(me, peer, TOKEN, seconds=20, most_bytes=1_000_000)
    assert flow.problem == ""
    assert flow.rate is not None
    assert flow.rate > 0


def test_a_connection_without_the_token_is_closed(peer: HostFacts) -> None:
    with pytest.raises(LinkError, match="connection ended"):
        probe.connect("127.0.0.1", peer.tcp_port, ProbeRequest("00" * 16, "echo"), 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.connect(("127.0.0.1", peer.udp_port))
        assert probe.datagram_loss(stranger, bytes(16), 0.0) == 1.0


def test_garbage_does_not_stop_the_responder(me: HostFacts, peer: HostFacts) -> None:
    for junk in (b"\x80\x04pickle\n", b"{" * 5000, b"[1]\n", b""):
        with socket.create_connection(("127.0.0.1", peer.tcp_port), timeout=5) as connection:
            connection.sendall(junk)
    assert probe.reach(me, peer, TOKEN).problem == ""


def test_another_rank_behind_the_address_is_noticed(me: HostFacts, peer: HostFacts) -> None:
    other = msgspec.structs.replace(peer, rank=2)
    assert "is rank 1, not 2" in probe.reach(me, other, TOKEN).problem


def test_nobody_listening_is_a_problem_and_not_an_exception(me: HostFacts, peer: HostFacts) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
    gone = msgspec.structs.replace(peer, tcp_port=port)
    assert "refused" in probe.reach(me, gone, TOKEN).problem
    assert "refused" in probe.bulk(me, gone, TOKEN, 1.0, 1000).problem


def test_the_start_of_a_transfer_is_left_out_of_its_rate() -> None:
    assert rate_after(1_000, 1.0, 100, 0.3) == pytest.approx(900 / 0.7)
    assert rate_after(1_000, 1.0, 0, 0.0) == 1_000
    assert rate_after(1_000, 1.0, 990, 0.9) == 1_000


def test_what_gloo_will_advertise_follows_its_variable() -> None:
    known = [Interface("lo", "127.0.0.1", 65536), Interface("eth0", "10.0.0.1", 1500)]
    assert gloo_address("eth0", known) == "10.0.0.1"
    assert gloo_address("eth0,eth1", known) == "10.0.0.1"
    assert gloo_address("ib0", known) is None


def test_this_machine_has_a_loopback_interface_and_a_route_to_it() -> None:
    assert any(one.address == "127.0.0.1" for one in interfaces())
    assert route_address("127.0.0.1") == "127.0.0.1"
