"""Site clusters: sites are found whatever the scale of a network, and noise of tens of per cent changes nothing."""

from __future__ import annotations

import csv
import random
from itertools import combinations, permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.sense.site_clusters import Sites, find_site_clusters

AWS10 = Path(__file__).parents[2] / "src/gradwire/network/data/aws10.csv"
MS = 1e-3


def trips_of(
    sites: Sites, inside: float, between: float, noise: float = 0.0, seed: int = 0
) -> dict[tuple[int, int], float]:
    """Round trips of both directions of every pair, each wrong by up to `noise` of itself."""
    draw = random.Random(seed)
    home = {rank: number for number, site in enumerate(sites) for rank in site}
    trips = {}
    for a, b in combinations(sorted(home), 2):
        real = inside if home[a] == home[b] else between
        for pair in ((a, b), (b, a)):
            trips[pair] = real * (1 + draw.uniform(-noise, noise))
    return trips


@pytest.mark.parametrize(("inside", "between"), [(0.2, 20), (0.05, 5), (2, 40), (10, 100), (40, 600)])
def test_sites_are_found_whatever_the_scale(inside: float, between: float) -> None:
    sites = ((0, 2), (1, 3, 4), (5,))
    assert find_site_clusters(6, trips_of(sites, inside * MS, between * MS)) == sites


@st.composite
def networks(draw: st.DrawFn) -> tuple[Sites, float, float]:
    """Sites of any sizes, ranks in any order, and two scales of round trips."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=2, max_size=5))
    ranks = draw(st.permutations(range(sum(sizes))))
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    sites = tuple(sorted(tuple(sorted(ranks[at : at + size])) for at, size in zip(starts, sizes, strict=True)))
    between = draw(st.floats(25 * MS, 600 * MS))
    return sites, draw(st.floats(0.02 * MS, between / 12)), between


@settings(max_examples=300, deadline=None)
@given(networks(), st.floats(0, 0.4), st.integers(0, 1 << 30))
def test_noise_of_tens_of_per_cent_changes_nothing(
    network: tuple[Sites, float, float], noise: float, seed: int
) -> None:
    sites, inside, between = network
    trips = trips_of(sites, inside, between, noise, seed)
    assert find_site_clusters(sum(map(len, sites)), trips) == sites


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 9), st.floats(0.02 * MS, 3 * MS), st.floats(0, 0.4), st.integers(0, 1 << 30))
def test_ranks_on_one_local_network_are_one_site(count: int, trip: float, noise: float, seed: int) -> None:
    sites = (tuple(range(count)),)
    assert find_site_clusters(count, trips_of(sites, trip, trip, noise, seed)) == sites


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 9), st.floats(30 * MS, 1.0), st.floats(0, 0.4), st.integers(0, 1 << 30))
def test_ranks_that_are_all_far_apart_are_sites_of_their_own(count: int, trip: float, noise: float, seed: int) -> None:
    sites = tuple((rank,) for rank in range(count))
    assert find_site_clusters(count, trips_of(sites, trip, trip, noise, seed)) == sites


def test_a_campus_counts_as_one_site_beside_a_server_room() -> None:
    """Each group is judged by its own separation: one distance for all would divide the campus."""
    trips = trips_of(((0, 1, 2), (3, 4, 5)), 0.2 * MS, 30 * MS)
    trips |= dict.fromkeys(permutations((3, 4, 5), 2), 4 * MS)
    assert find_site_clusters(6, trips) == ((0, 1, 2), (3, 4, 5))


def test_hosts_with_several_ranks_belong_to_the_site_of_their_network() -> None:
    trips = trips_of(((0, 1, 2, 3), (4, 5, 6, 7)), 1.5 * MS, 80 * MS)
    for pair in ((0, 1), (2, 3), (4, 5), (6, 7)):
        trips[pair] = trips[pair[::-1]] = 0.03 * MS
    assert find_site_clusters(8, trips) == ((0, 1, 2, 3), (4, 5, 6, 7))


def test_a_narrow_link_divides_ranks_that_round_trips_do_not() -> None:
    sites = ((0, 1), (2, 3))
    trips = trips_of(((0, 1, 2, 3),), MS, MS)
    home = {0: 0, 1: 0, 2: 1, 3: 1}
    rates = {(a, b): 100.0 if home[a] == home[b] else 5.0 for a in range(4) for b in range(4) if a != b}
    assert find_site_clusters(4, trips, rates) == sites
    noisy = {pair: rate * (1.4 if sum(pair) % 2 else 0.7) for pair, rate in rates.items()}
    assert find_site_clusters(4, trips, noisy) == sites
    assert find_site_clusters(4, trips, dict.fromkeys(rates, 50.0)) == ((0, 1, 2, 3),)
    del rates[0, 2], rates[2, 0]
    assert find_site_clusters(4, trips, rates) == ((0, 1, 2, 3),), "a pair that was not measured divides nothing"


def test_an_unreachable_rank_is_alone_and_changes_nothing_for_the_others() -> None:
    trips = trips_of(((0, 1), (2,)), MS, 80 * MS)
    assert find_site_clusters(4, trips) == ((0, 1), (2,), (3,))
    far = trips_of(((0,), (1,), (2,)), MS, 80 * MS)
    assert find_site_clusters(4, far) == ((0,), (1,), (2,), (3,))


def test_one_rank_or_none_is_no_problem() -> None:
    assert find_site_clusters(0, {}) == ()
    assert find_site_clusters(1, {}) == ((0,),)
    assert find_site_clusters(2, {}) == ((0,), (1,))


def named_sites(regions: list[str], trips: dict[tuple[int, int], float]) -> list[set[str]]:
    return [{regions[rank] for rank in site} for site in find_site_clusters(len(regions), trips) if len(site) > 1]


def test_regions_of_one_continent_are_near_each_other() -> None:
    """Ten cloud regions, two hosts in each: the hosts of a region are a site."""
    with AWS10.open() as file:
        measured = {(row["region_a"], row["region_b"]): float(row["rtt_ms"]) * MS for row in csv.DictReader(file)}
    regions = sorted({region for pair in measured for region in pair})
    place = {region: number for number, region in enumerate(regions)}
    one_each = {(place[a], place[b]): trip for (a, b), trip in measured.items()}
    assert {"Virginia", "Ohio"} in named_sites(regions, one_each)
    two_each = {(2 * a + i, 2 * b + j): trip for (a, b), trip in one_each.items() for i in (0, 1) for j in (0, 1)}
    two_each |= {(2 * number, 2 * number + 1): 0.3 * MS for number in range(len(regions))}
    sites = find_site_clusters(2 * len(regions), two_each)
    assert sites == tuple((2 * number, 2 * number + 1) for number in range(len(regions)))


# Shortest round trips in ms that the Skyplane project measured in April 2022, for pairs of regions of two clouds:
# AWS us-east-1 and Azure eastus, AWS eu-central-1 and Azure germanywestcentral, AWS ap-northeast-1 and Azure japaneast.
CLOUDS = {
    (0, 1): 1.737, (0, 2): 89.781, (0, 3): 86.992, (0, 4): 167.784, (0, 5): 157.811,
    (1, 2): 88.491, (1, 3): 87.277, (1, 4): 163.217, (1, 5): 155.955, (2, 3): 2.125,
    (2, 4): 223.175, (2, 5): 242.817, (3, 4): 222.713, (3, 5): 217.572, (4, 5): 4.075,
}  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_measured_clouds_give_the_same_sites_with_noise(seed: int) -> None:
    draw = random.Random(seed)
    trips = {pair: trip * MS * (draw.uniform(0.7, 1.3) if seed else 1.0) for pair, trip in CLOUDS.items()}
    assert find_site_clusters(6, trips) == ((0, 1), (2, 3), (4, 5))
