"""Outgoing messages: a queue of new ones, and the time when unanswered ones are repeated."""

from __future__ import annotations

from gradwire.plan.membership.messages import Message

# Seconds until an unanswered message is repeated; messages are small, and loss is the exception.
RESEND = 0.2

Addressed = tuple[int, Message]


class OutgoingMessages:
    """What one member sends."""

    def __init__(self) -> None:
        self._queued: list[Addressed] = []
        self._resend_at = 0.0

    def send(self, rank: int, message: Message) -> None:
        self._queued.append((rank, message))

    def resend(self, now: float) -> None:
        """Send what is unanswered at the next poll."""
        self._resend_at = now

    def due(self, now: float) -> bool:
        """Whether it is time to repeat unanswered messages."""
        if now < self._resend_at:
            return False
        self._resend_at = now + RESEND
        return True

    def drain(self) -> list[Addressed]:
        queued, self._queued = self._queued, []
        return queued
