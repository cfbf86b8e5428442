"""Site names: the site of each rank in the dashboard, by GRADWIRE_SITE or by the measured links. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gradwire.observe.state import RunState
from gradwire.sense.site_clusters import find_site_clusters


def site_names(state: RunState, ranks: Sequence[int]) -> dict[int, str]:
    """What GRADWIRE_SITE says; where no rank has it, a name for each measured site. Empty names where round trips show
    one site only, or none of several ranks."""
    named = {rank: state.ranks[rank].site if rank in state.ranks else "" for rank in ranks}
    if any(named.values()):
        return named
    place = {rank: number for number, rank in enumerate(ranks)}
    trips = {
        (place[sample.source], place[sample.destination]): trip
        for sample in state.links.values()
        if (trip := _round_trip(sample.rtprop, sample.rtt)) and sample.source in place and sample.destination in place
    }
    sites = find_site_clusters(len(ranks), trips)
    if not 1 < len(sites) < len(ranks):
        return named
    return {ranks[member]: f"site {number} (measured)" for number, site in enumerate(sites) for member in site}


def _round_trip(*candidates: float | None) -> float | None:
    """The first that is one: a recording may contain anything."""
    return next((trip for trip in candidates if trip is not None and math.isfinite(trip) and trip > 0), None)
