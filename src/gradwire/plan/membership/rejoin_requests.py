"""Rejoin requests: when a member that waits for an epoch asks the others to include it."""

from __future__ import annotations

# A regroup takes a few round trips. A member that is in no epoch after this long (seconds) asks to join, this often.
ASK = 1.0
# A member of the epoch that has not reached another one for this long (seconds) is removed: the two cannot work
# together, and all others wait. Longer than it takes until both sides notice a lost connection.
STUCK = 3.0


class RejoinRequests:
    """`enabled` if lost members may rejoin at all, `ready` if this one could now."""

    def __init__(self) -> None:
        self.enabled, self.ready = False, True
        # Since when this member waits for an epoch.
        self.since: float | None = None
        self._next = 0.0

    @property
    def asking(self) -> bool:
        """Whether it has waited so long that its own epoch will not continue."""
        return self.enabled and self._next > 0.0

    def due(self, waiting: bool, now: float) -> float | None:
        """How long this member has waited, if it is time to ask; else None."""
        if not waiting:
            self.since, self._next = None, 0.0
        elif self.since is None:
            self.since = now
        elif self.enabled and self.ready and now - self.since >= ASK and now >= self._next:
            self._next = now + ASK
            return now - self.since
        return None
