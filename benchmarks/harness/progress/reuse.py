"""Reuse: trainings of earlier code that the present code repeats.

A training of a fixed level or a hook depends on nothing but its settings and the code; it is deterministic. Where the
code has changed, the first steps are trained again. If losses and traffic are the recorded ones, digit by digit, the
change does not concern this level, and the record is kept as one of the present code. Error feedback carries every
difference on from step to step, so a few steps show it. Runs of controllers are never reused: a change may show late.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

from harness.progress.ledger import Ledger
from harness.progress.runs import Work, each_of

KINDS: Final = ("train", "peer")
# Steps that are trained again: PowerSGD starts after ten.
REPEATED: Final = 20


def repeated(work: Work, ledger: Ledger) -> dict[str, Any] | None:
    """The record of earlier code, entered for the present one; None if there is none, or it is not repeated."""
    old = ledger.of_any_code(work.settings) if work.settings["kind"] in KINDS else None
    if old is None:
        return None
    again = work.run(REPEATED)
    if again["losses"] != old["losses"][:REPEATED] or _traffic(again) != _traffic(old):
        return None
    kept = {name: value for name, value in old.items() if name not in ("key", "settings", "code")}
    return ledger.add(work.settings, work.code, kept)


def _traffic(record: dict[str, Any]) -> list[Any]:
    return list(islice(each_of(record["traffic"]), REPEATED))
