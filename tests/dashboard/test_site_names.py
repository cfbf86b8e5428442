"""Sites in the dashboard: as named, otherwise as round trips show them, whatever a recording contains."""

from __future__ import annotations

from itertools import permutations

from gradwire.dashboard.site_names import site_names
from gradwire.events import LinkSample
from gradwire.observe.state import RankState, RunState

RANKS = [0, 1, 3, 4]


def state(far: float, sites: tuple[str, ...] = ("", "", "", "")) -> RunState:
    """Ranks 0 and 3 are near each other, ranks 1 and 4 are; there is no rank 2."""
    home = {0: "a", 3: "a", 1: "b", 4: "b"}
    links = {(a, b): LinkSample(a, b, rtprop=0.001 if home[a] == home[b] else far) for a, b in permutations(RANKS, 2)}
    ranks = {rank: RankState(host=f"host{rank}", site=site) for rank, site in zip(RANKS, sites, strict=True)}
    return RunState(ranks=ranks, links=links)


def test_measured_sites_have_names() -> None:
    first, second = "site 0 (measured)", "site 1 (measured)"
    assert site_names(state(0.05), RANKS) == {0: first, 3: first, 1: second, 4: second}


def test_ranks_that_are_all_near_have_none() -> None:
    assert set(site_names(state(0.001), RANKS).values()) == {""}


def test_names_that_were_given_stay() -> None:
    assert list(site_names(state(0.05, ("x", "", "y", "y")), RANKS).values()) == ["x", "", "y", "y"]


def test_impossible_values_and_unknown_ranks_are_left_out() -> None:
    broken = state(0.05)
    for trip in (float("nan"), float("inf"), -1.0, 0.0):
        broken.links[0, 3] = LinkSample(0, 3, rtprop=trip)
        broken.links[9, 0] = LinkSample(9, 0, rtprop=0.001)
        assert len(set(site_names(broken, RANKS).values())) == 2
    assert site_names(RunState(), []) == {}
    assert site_names(RunState(), [5]) == {5: ""}
