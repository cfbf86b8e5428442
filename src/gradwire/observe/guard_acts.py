"""Guard acts: how often the accuracy guard reduced compression, and what it said the last time. Every view shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gradwire.events import Event, Faulted
from gradwire.observe.format import clean

# What a user can do about it.
ADVICE: Final = "the setting lossiest (GRADWIRE_LOSSIEST) rules lossy levels out from the start"


@dataclass(slots=True)
class GuardActs:
    """Adds up events of the kind "guard"."""

    count: int = 0
    step: int = 0
    detail: str = ""

    def take(self, event: Event) -> None:
        if isinstance(event, Faulted) and event.kind == "guard":
            self.count, self.step, self.detail = self.count + 1, event.step, event.detail

    @property
    def headline(self) -> str:
        """ "compression harmed training 2 times"; empty if it never did."""
        if not self.count:
            return ""
        return f"compression harmed training {'once' if self.count == 1 else f'{self.count} times'}"

    @property
    def verdict(self) -> str:
        """The headline and the last act, in one line; empty without an act."""
        if not self.count:
            return ""
        when = "at" if self.count == 1 else "last at"
        return f"{self.headline}; {when} step {self.step}: {clean(self.detail)}"
