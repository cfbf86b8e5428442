"""AckSource: where a governor reads what a transport's acknowledgements show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gradwire.sense.ack_stats import AckedTotals
from gradwire.types import LinkView


@dataclass(frozen=True, slots=True)
class AckSource:
    """What the transport's acknowledgements show of each link, and what moved over it; empty where there are none.
    `in_turns`: several links may lead to one rank and be used one after another; `ranks` are those that each leads to,
    where links are numbered by connection. None: they are numbered by rank."""

    links: Callable[[], dict[int, LinkView]] = dict
    moved: Callable[[], dict[int, AckedTotals]] = dict
    in_turns: bool = False
    ranks: Callable[[], Mapping[int, tuple[int, ...]]] | None = None
