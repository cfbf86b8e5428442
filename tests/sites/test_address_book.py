"""A member whose process was replaced is reconnected at its new address."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from torch.distributed import HashStore

from gradwire.sites.address_book import AddressBook
from gradwire.tree.reconnect import Reconnector


def test_a_member_that_moved_is_reconnected_at_its_new_address() -> None:
    class Wire:
        addresses = {1: ("10.0.0.1", 5)}  # noqa: RUF012
        called: list[tuple[str, int]] = []  # noqa: RUF012

        def reconnect(self, peer: int) -> None:
            self.called.append(self.addresses[peer])

        def connection_state(self, peer: int) -> str:
            return "waiting"

    store, wire = HashStore(), Wire()
    here, there = AddressBook(store, "job"), AddressBook(store, "job")
    reconnector = Reconnector(wire, here.addresses)
    reconnector.reconnect(1, until=100.0)
    there.publish(1, ("nowhere", 6))
    here.read([1])
    assert here.addresses == {}
    there.publish(1, ("10.0.0.2", 6))
    here.read([1])
    assert reconnector.poll(1.0) == []
    assert reconnector.poll(2.0) == []
    assert wire.called == [("10.0.0.1", 5), ("10.0.0.2", 6)]
    here.watch(lambda: [1])
    here.close()
    assert "gradwire-address-book" not in [thread.name for thread in threading.enumerate()]


def test_a_member_that_left_is_reconnected_only_when_another_process_has_its_rank() -> None:
    wire = SimpleNamespace(addresses={1: ("10.0.0.1", 5), 2: ("10.0.0.2", 5)})
    reconnector = Reconnector(wire, {1: ("10.0.0.1", 5), 2: ("10.0.0.9", 7)})
    assert reconnector.moved([0, 1, 2]) == [2]
