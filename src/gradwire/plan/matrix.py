"""Matrix: what is known of the network between members, as the planners read it.

In: directed throughput and round trips per pair, what a member's own up- and downlink carry, how old and how sure
each number is. Out: the same as arrays over member indices, plus the rates a planner may count on.
A pair without a link has rate 0; whether others relay for it is a matter of routes (`plan.routes`), not of this noun.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire.errors import ConfigError

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """`rate[i, j]` bytes/s from member i to j (0: no link), `rtprop` seconds there and back; all by member index.

    `up` and `down` bound what one member sends and receives in all (infinite: nothing known to bind).
    `age` (seconds since measured) and `confidence` (0..1) say how far to believe each rate.
    """

    members: tuple[int, ...]
    rate: Floats
    rtprop: Floats
    up: Floats
    down: Floats
    age: Floats
    confidence: Floats

    @property
    def size(self) -> int:
        return len(self.members)

    @classmethod
    def of(cls, rate: Any, rtprop: Any = 0.0, members: Sequence[int] | None = None, **nodes: Any) -> Matrix:
        """From anything numpy reads as n x n; `nodes` may give up, down, age, confidence (scalars spread)."""
        rates = np.array(rate, dtype=np.float64)
        if rates.ndim != 2 or rates.shape[0] != rates.shape[1]:
            raise ConfigError(f"matrix: rates must be n x n, one row per sender, not {rates.shape}")
        size = len(rates)
        names = tuple(range(size)) if members is None else tuple(members)
        if len(names) != size or len(set(names)) != size:
            raise ConfigError(f"matrix: {size} rows need {size} different members, not {len(set(names))}")
        np.fill_diagonal(rates, 0.0)
        rates[np.isnan(rates)] = 0.0
        pair, node = (size, size), (size,)
        made = cls(
            names, rates, _spread(rtprop, pair),
            _spread(nodes.pop("up", np.inf), node), _spread(nodes.pop("down", np.inf), node),
            _spread(nodes.pop("age", 0.0), pair), _spread(nodes.pop("confidence", 1.0), pair),
        )  # fmt: skip
        if nodes:
            raise ConfigError(
                f"matrix: unknown columns {', '.join(sorted(nodes))}; up, down, age, confidence are known"
            )
        if (rates < 0).any() or (made.rtprop < 0).any() or (made.up <= 0).any() or (made.down <= 0).any():
            raise ConfigError("matrix: rates and round trips must not be negative, up and down must be above 0")
        return made

    @classmethod
    def of_links(cls, links: Mapping[tuple[int, int], float], rtprop: float = 0.0, **nodes: Any) -> Matrix:
        """From directed links {(source, destination): bytes/s} alone; members are whoever a link names."""
        members = sorted({end for link in links for end in link})
        index = {member: place for place, member in enumerate(members)}
        rate = np.zeros((len(members), len(members)))
        for (source, destination), value in links.items():
            rate[index[source], index[destination]] = value
        return cls.of(rate, rtprop, members, **nodes)

    def effective(self) -> Floats:
        """The fastest one transfer can go on each pair: the link's rate, within what both ends carry."""
        return np.minimum(np.minimum(self.rate, self.up[:, None]), self.down[None, :])

    def index(self, member: int) -> int:
        try:
            return self.members.index(member)
        except ValueError:
            raise ConfigError(f"matrix: {member} is not a member; members are {self.members}") from None

    def only(self, members: Iterable[int]) -> Matrix:
        """The same network without those who left."""
        keep = [self.index(member) for member in members]
        pair = np.ix_(keep, keep)
        return Matrix(
            tuple(self.members[place] for place in keep),
            self.rate[pair], self.rtprop[pair], self.up[keep], self.down[keep], self.age[pair], self.confidence[pair],
        )  # fmt: skip

    def cautious(self) -> Matrix:
        """Rates lowered where little is known: half of the rate is taken on trust, half is weighted by confidence."""
        trusted = self.rate * (0.5 + 0.5 * np.clip(self.confidence, 0.0, 1.0))
        return Matrix(self.members, trusted, self.rtprop, self.up, self.down, self.age, self.confidence)


def _spread(value: Any, shape: tuple[int, ...]) -> Floats:
    try:
        return np.array(np.broadcast_to(np.asarray(value, dtype=np.float64), shape))
    except ValueError:
        raise ConfigError(f"matrix: expected values of shape {shape}, got {np.shape(value)}") from None
