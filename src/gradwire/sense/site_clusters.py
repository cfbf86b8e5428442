"""Site clusters: which ranks are near each other, by measured round trips and rates. Pure.

In: round trips and rates of pairs. Out: groups of ranks. The rule has no scale of its own: a group is a site if it is
much nearer to itself than to everybody else, whether that is 0.2 ms against 5 ms or 10 ms against 100 ms.

    1. distance of two ranks: the shorter of their measured round trips, plus what measurements differ by anyway
    2. the two nearest groups are merged, again and again (average linkage), which gives a tree of groups
    3. a group's separation is the distance at which it is merged with others over that at which it was formed itself. A
       group with a separation of SEPARATED or more is a site, unless it contains one that is more separated
    4. all ranks together are judged as if another site was FAR away
    5. a site is divided by the same steps if rates inside parts of it are RATE_SEPARATED times those between the parts

Measurements may be wrong by tens of per cent: distances that are really equal differ by less than SEPARATED then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Pairs = Mapping[tuple[int, int], float]
Sites = tuple[tuple[int, ...], ...]

# Seconds by which round trips on a local network differ for reasons of the hosts (chosen: a busy scheduler's).
FLOOR: Final = 0.5e-3
# Errors of 40 % up and down make equal distances differ by a factor of 2.3.
SEPARATED: Final = 3.0
# Rates of single TCP transfers vary more than shortest round trips (chosen, not measured).
RATE_SEPARATED: Final = 5.0
# Seconds; neighbouring cities are about as far. A lone site is one if its round trips are a third of that.
FAR: Final = 0.02


@dataclass(frozen=True, slots=True)
class _Group:
    """A node of the tree: its ranks, the distance at which it was formed, and the sites found inside it."""

    ranks: tuple[int, ...]
    formed: float
    sites: tuple[tuple[int, ...], ...] = ()
    separation: float = 1.0


def find_site_clusters(count: int, round_trips: Pairs, rates: Pairs | None = None) -> Sites:
    """The sites of ranks 0 to `count` - 1, each in rising order; a rank that is near nobody is a site of its own.

    `round_trips` in seconds and `rates` in any unit, of ordered pairs; one direction is enough, and pairs without a
    round trip count as far.
    """
    if not count:
        return ()
    everyone = list(range(count))
    distance = _symmetric(everyone, round_trips, min, math.inf) + FLOOR  # 1
    found = _separated(everyone, distance, SEPARATED, whole=FAR)
    divided = [part for site in found for part in _divided(site, rates or {})]
    return tuple(sorted(divided))


def _divided(site: tuple[int, ...], rates: Pairs) -> Sites:  # 5
    fastest = _symmetric(site, rates, max, 0.0)
    np.fill_diagonal(fastest, math.inf)
    if len(site) < 3 or not fastest.all():  # a pair that was not measured
        return (site,)
    parts = _separated(site, 1.0 / fastest, RATE_SEPARATED, whole=0.0)
    return parts if any(len(part) > 1 for part in parts) else (site,)


def _separated(ranks: Sequence[int], distance: Floats, separated: float, whole: float) -> Sites:
    """The sites among `ranks`; `whole` is the distance of all of them together to others."""
    groups = [_Group((rank,), 0.0) for rank in ranks]
    longest = max(whole, float(distance[np.isfinite(distance)].max(initial=0.0)))
    between = np.minimum(distance, longest)  # an unreachable rank does not make one site of all others
    np.fill_diagonal(between, math.inf)
    while len(groups) > 1:
        a, b = sorted(divmod(int(between.argmin()), len(groups)))
        height = float(between[a, b])
        first, second = (_judged(groups[each], height, separated) for each in (a, b))  # 3
        inside, most = first.sites + second.sites, max(first.separation, second.separation)
        between = _merged(between, a, b, (len(first.ranks), len(second.ranks)))  # 2
        groups[a] = _Group(tuple(sorted(first.ranks + second.ranks)), height, inside, most)
        del groups[b]
    root = _judged(groups[0], whole, separated)  # 4
    near = {rank for site in root.sites for rank in site}
    return (*root.sites, *((rank,) for rank in ranks if rank not in near))


def _judged(group: _Group, merged_at: float, separated: float) -> _Group:
    """The group, as a site itself where it is separated enough, and more than the sites inside it."""
    if len(group.ranks) == 1:
        return group
    separation = merged_at / group.formed if group.formed else math.inf
    if separation < separated or separation < group.separation:
        return group
    return _Group(group.ranks, group.formed, (group.ranks,), separation)


def _merged(between: Floats, a: int, b: int, sizes: tuple[int, int]) -> Floats:
    """The distances after `b` was merged into `a`: means over the members of both."""
    mean = (sizes[0] * between[a] + sizes[1] * between[b]) / sum(sizes)
    between[a], between[:, a] = mean, mean
    between[a, a] = math.inf
    return np.delete(np.delete(between, b, axis=0), b, axis=1)


def _symmetric(ranks: Sequence[int], pairs: Pairs, better: Callable[[float, float], float], missing: float) -> Floats:
    """A matrix over `ranks` of the better of each pair's two directions."""
    place = {rank: index for index, rank in enumerate(ranks)}
    found = np.full((len(ranks), len(ranks)), missing)
    for (a, b), value in pairs.items():
        if a in place and b in place:
            i, j = place[a], place[b]
            found[i, j] = found[j, i] = better(float(found[i, j]), value)
    np.fill_diagonal(found, 0.0)
    return found
