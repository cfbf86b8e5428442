"""Reconnect: connects to lost peers again until they answer or a deadline passes.

In: lost peers, the time, and new addresses if known. Out: peers that are connected again. The wire connects in the
background; this module only starts a new attempt when one failed or when the peer's address changed. Both ends of a
lost connection do this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class Reconnector:
    """Pending attempts, each with its own deadline. Runs on the executor's thread."""

    def __init__(self, wire: Any, addresses: Mapping[int, tuple[str, int]] | None = None) -> None:
        self._wire = wire
        # Current addresses of peers whose process was replaced; the owner of the mapping may add to it at any time.
        self._addresses = addresses if addresses is not None else {}
        self._until: dict[int, float] = {}
        # Why the last attempt failed, by peer, as the wire calls it.
        self._failures: dict[int, str] = {}

    def reconnect(self, peer: int, until: float) -> None:
        """Start to connect to this peer; give up at `until`."""
        if hasattr(self._wire, "reconnect"):
            self._until[peer] = until
            self._update_address(peer)
            self._wire.reconnect(peer)

    def poll(self, now: float) -> list[int]:
        """The peers that are connected since the last call."""
        connected = []
        for peer, until in list(self._until.items()):
            if self._update_address(peer):
                self._wire.reconnect(peer)
            state = self._wire.connection_state(peer)
            if state == "connected":
                connected.append(peer)
                self._failures.pop(peer, None)
            elif state != "waiting":
                self._failures[peer] = state
            if state == "connected" or now > until:
                del self._until[peer]
            elif state != "waiting":
                self._wire.reconnect(peer)
        return connected

    def failures(self) -> str:
        """Why peers could not be connected, in words; empty where nothing is known."""
        return "; ".join(f"rank {peer} {self._wire.explain(why)}" for peer, why in sorted(self._failures.items()))

    def moved(self, peers: Iterable[int]) -> list[int]:
        """Those of these peers whose address changed, because another process replaced theirs."""
        return [peer for peer in peers if self._addresses.get(peer) not in (None, self._wire.addresses.get(peer))]

    def _update_address(self, peer: int) -> bool:
        address = self._addresses.get(peer)
        if address is None or address == self._wire.addresses.get(peer):
            return False
        self._wire.addresses[peer] = address
        return True
