"""What the addresses that peers saw say about the NAT in front of a rank."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from gradwire.doctor.nat_probe import MESSAGE, Reflector, examine_nat, judge
from gradwire.doctor.types import HostFacts, NatGuess

TOKEN = "cd" * 16
OWN = ("192.168.1.2", 5000)
LOOPBACK = "127.0.0.1"


def host(rank: int, ports: list[int]) -> HostFacts:
    return HostFacts(rank, "", LOOPBACK, "", LOOPBACK, [], "", "", "", 0, 0, reflector_ports=ports)


@pytest.fixture
def reflector() -> Iterator[Reflector]:
    one = Reflector(TOKEN)
    yield one
    one.close()


@pytest.mark.parametrize(
    ("seen", "unasked", "kind"),
    [
        (set(), False, "not known"),
        ({OWN}, True, "none"),
        ({("10.0.0.1", 5000)}, True, "full-cone"),
        ({("10.0.0.1", 5000)}, False, "port-restricted"),
        ({("10.0.0.1", 4001), ("10.0.0.1", 4002)}, False, "symmetric"),
        ({OWN, ("10.0.0.1", 5000)}, True, "port-restricted"),
        ({OWN, ("10.0.0.1", 4001), ("10.0.0.1", 4002)}, True, "symmetric"),
    ],
)
def test_the_kind_follows_from_what_peers_saw(seen: set[tuple[str, int]], unasked: bool, kind: NatGuess) -> None:
    assert judge(OWN, seen, unasked) == kind


def test_without_a_nat_peers_see_the_hosts_own_address(reflector: Reflector) -> None:
    facts = examine_nat(host(0, []), [host(1, reflector.ports)], TOKEN)
    assert (facts.rank, facts.kind, facts.address, facts.hidden) == (0, "none", "", False)


def test_silence_is_not_taken_for_a_kind(reflector: Reflector) -> None:
    facts = examine_nat(host(0, []), [host(1, reflector.ports)], "00" * 16)
    assert (facts.kind, facts.hidden) == ("not known", False)


def test_a_port_that_may_be_asked_answers_the_token_alone_and_once(reflector: Reflector) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind((LOOPBACK, 0))
        right = MESSAGE.pack(bytes.fromhex(TOKEN), 0, bytes(4), 0)
        for wrong in (b"", right[:-1], right + b"\0", bytes(MESSAGE.size)):
            probe.sendto(wrong, (LOOPBACK, reflector.ports[1]))
        probe.sendto(right, (LOOPBACK, reflector.ports[1]))
        probe.settimeout(10)
        answer = MESSAGE.unpack(probe.recv(2048))
        assert (answer[1], socket.inet_ntoa(answer[2]), answer[3]) == (1, *probe.getsockname())
        probe.setblocking(False)
        with pytest.raises(BlockingIOError):
            probe.recv(2048)
