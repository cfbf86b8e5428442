"""The mixed wire: shared memory to peers on the same host, the far wire to others."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import pytest

from gradwire.errors import ConfigError
from gradwire.transport.bootstrap.rendezvous import SharesHost
from gradwire.transport.wires.base import Wire
from gradwire.transport.wires.mixed import MixedWire, open_wire, wire_kind
from gradwire.transport.wires.shm import ShmEndpoint, host_identity
from gradwire.transport.wires.tcp import TcpEndpoint

SECRET = b"0123456789abcdef0123456789abcdef"
LIMIT = 20.0


@contextmanager
def world(hosts: list[str]) -> Iterator[list[MixedWire]]:
    """One wire per entry, with the identity of its host."""
    with ExitStack() as stack:
        ends = [
            stack.enter_context(MixedWire(ShmEndpoint(rank, SECRET), TcpEndpoint(rank, SECRET), host))
            for rank, host in enumerate(hosts)
        ]

        def join(end: MixedWire) -> None:
            others = [other for other in ends if other is not end]
            end.set_local_addresses({other.rank: other.local_address() for other in others})
            end.connect({other.rank: ("127.0.0.1", other.port) for other in others}, LIMIT)

        threads = [threading.Thread(target=join, args=(end,)) for end in ends]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
            assert not thread.is_alive()
        yield ends


def exchange(a: Wire, b: Wire, size: int = 100_000) -> None:
    buffer = bytearray(size)
    inbound = b.post(a.rank, buffer, tag=7)
    outbound = a.send(b.rank, b"m" * size, tag=7)
    assert inbound.wait(LIMIT).complete
    assert outbound.wait(LIMIT).complete
    assert buffer == b"m" * size


def test_each_peer_is_reached_by_the_right_wire() -> None:
    with world(["here", "here", "there"]) as ends:
        for a in ends:
            for b in ends:
                if a is not b:
                    exchange(a, b)
        assert isinstance(ends[0].wire_to(1), ShmEndpoint)
        assert isinstance(ends[0].wire_to(2), TcpEndpoint)
        assert isinstance(ends[2].wire_to(1), TcpEndpoint)
        assert set(ends[0].stats()) == {1, 2}
        assert set(ends[0].views()) == {1, 2}
        assert ends[0].view(9).rtprop is None


def test_shared_memory_alone_does_not_reach_another_host() -> None:
    with MixedWire(ShmEndpoint(0, SECRET), None) as end:
        end.set_local_addresses({1: ("another host", 5)})
        with pytest.raises(ConfigError, match="GRADWIRE_WIRE"):
            end.connect({1: ("127.0.0.1", 5)})


@pytest.mark.parametrize("kind", ["auto", "ltp", "tcp", "shm"])
def test_every_kind_can_be_opened(kind: str) -> None:
    with open_wire(0, SECRET, "127.0.0.1", kind=kind) as wire:
        assert 0 < wire.port < 65536
        assert isinstance(wire, SharesHost) == (kind in ("auto", "shm"))


@pytest.mark.parametrize(("environment", "kind"), [({}, "auto"), ({"GRADWIRE_WIRE": "tcp"}, "tcp")])
def test_the_setting_names_the_wire(environment: Mapping[str, str], kind: str) -> None:
    assert wire_kind(environment) == kind


def test_an_unknown_wire_is_named() -> None:
    with pytest.raises(ConfigError, match="carrier pigeon"):
        wire_kind({"GRADWIRE_WIRE": "carrier pigeon"})


def test_the_identity_names_boot_and_namespace() -> None:
    boot, namespace, user = host_identity().split("/")
    assert len(boot) == 36
    assert namespace.isdigit()
    assert user.isdigit()
