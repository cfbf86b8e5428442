"""Redial: calls lost peers again until they answer, or until it is not worth it any more.

In: who was lost, the time, and perhaps word of where it is now. Out: who is connected again. The wire connects by
itself, in the background; this only starts it anew whenever an attempt has failed or the peer is said to be elsewhere.
Both ends of a lost connection do so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class Reconnector:
    """Attempts under way, each until its own end. Runs on the walker's thread."""

    def __init__(self, wire: Any) -> None:
        self._wire = wire
        # Peers that another process speaks for by now, and where; whoever learns of it writes it here.
        self.addresses: Mapping[int, tuple[str, int]] = {}
        self._until: dict[int, float] = {}

    def reconnect(self, peer: int, until: float) -> None:
        """Try to reach this peer until then; what is known of an older connection to it is past."""
        if hasattr(self._wire, "reconnect"):
            self._until[peer] = until
            self._follow(peer)
            self._wire.reconnect(peer)

    def poll(self, now: float) -> list[int]:
        """Who has answered since the last turn."""
        found = []
        for peer, until in list(self._until.items()):
            if self._follow(peer):
                self._wire.reconnect(peer)
            state = self._wire.connection_state(peer)
            if state == "connected":
                found.append(peer)
            if state == "connected" or now > until:
                del self._until[peer]
            elif state != "waiting":
                self._wire.reconnect(peer)
        return found

    def moved(self, peers: Iterable[int]) -> list[int]:
        """Those of these peers that another process speaks for by now."""
        return [peer for peer in peers if self.addresses.get(peer) not in (None, self._wire.addresses.get(peer))]

    def _follow(self, peer: int) -> bool:
        place = self.addresses.get(peer)
        if place is None or place == self._wire.addresses.get(peer):
            return False
        self._wire.addresses[peer] = place
        return True
