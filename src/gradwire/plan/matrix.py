"""Matrix: estimates of the network between members, as the planners use them.

In: directed throughput and round trip per pair, capacity of each member's up- and downlink, age and confidence of each
value. Out: arrays over member indices, and the rates that a planner should assume.
A pair without a link has rate 0; relays for it are found by `plan.model.routes`.
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
    """`rate[i, j]` in bytes/s from member i to j (0: no link), `rtprop` round trips in seconds; all by member index.

    `up` and `down` limit what one member sends and receives in total (infinite: no known limit).
    `age` (seconds since measured) and `confidence` (0..1) belong to each rate.
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
        """From anything that numpy reads as n x n; `nodes` may be up, down, age, confidence (scalars apply to all)."""
        rates = np.array(rate, dtype=np.float64)
        if rates.ndim != 2 or rates.shape[0] != rates.shape[1]:
            raise ConfigError(f"matrix: rates have shape {rates.shape}; they must be n x n, one row per sender")
        size = len(rates)
        names = tuple(range(size)) if members is None else tuple(members)
        if len(names) != size or len(set(names)) != size:
            raise ConfigError(f"matrix: {len(set(names))} different members for {size} rows; name one per row")
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
                f"matrix: {', '.join(sorted(nodes))} are not columns; the columns are up, down, age, confidence"
            )
        if (rates < 0).any() or (made.rtprop < 0).any() or (made.up <= 0).any() or (made.down <= 0).any():
            raise ConfigError(
                "matrix: a value is out of range; rates and round trips must be 0 or more, up and down above 0"
            )
        return made

    @classmethod
    def of_links(cls, links: Mapping[tuple[int, int], float], rtprop: float = 0.0, **nodes: Any) -> Matrix:
        """From directed links {(source, destination): bytes/s}; members are the ends of the links."""
        members = sorted({end for link in links for end in link})
        index = {member: row for row, member in enumerate(members)}
        rate = np.zeros((len(members), len(members)))
        for (source, destination), value in links.items():
            rate[index[source], index[destination]] = value
        return cls.of(rate, rtprop, members, **nodes)

    def effective(self) -> Floats:
        """The highest rate of one transfer per pair: the link's rate, limited by both ends' up- and downlink."""
        return np.minimum(np.minimum(self.rate, self.up[:, None]), self.down[None, :])

    def index(self, member: int) -> int:
        try:
            return self.members.index(member)
        except ValueError:
            raise ConfigError(f"matrix: {member} is not a member; the members are {self.members}") from None

    def only(self, members: Iterable[int]) -> Matrix:
        """The matrix of these members only."""
        keep = [self.index(member) for member in members]
        pair = np.ix_(keep, keep)
        return Matrix(
            tuple(self.members[row] for row in keep),
            self.rate[pair], self.rtprop[pair], self.up[keep], self.down[keep], self.age[pair], self.confidence[pair],
        )  # fmt: skip

    def cautious(self) -> Matrix:
        """Rates lowered where confidence is low: half of the rate counts fully, half is weighted by confidence."""
        lowered = self.rate * (0.5 + 0.5 * np.clip(self.confidence, 0.0, 1.0))
        return Matrix(self.members, lowered, self.rtprop, self.up, self.down, self.age, self.confidence)


def _spread(value: Any, shape: tuple[int, ...]) -> Floats:
    try:
        return np.array(np.broadcast_to(np.asarray(value, dtype=np.float64), shape))
    except ValueError:
        raise ConfigError(f"matrix: values have shape {np.shape(value)}; the shape must be {shape}") from None
