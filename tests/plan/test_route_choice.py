"""Route choice: flat where links are equal, trees where a link or a shared line is the limit, nothing on guesses."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.plan.measured_network import MeasuredNetwork
from gradwire.plan.membership.replan import predicted_seconds
from gradwire.plan.model.matrix_io import netstorm9
from gradwire.plan.model.routes import Routes
from gradwire.plan.planners.registry import make_plan
from gradwire.plan.route_choice import RISKED, WORTH, RouteChoice, choose_routes
from gradwire.plan.tree_forecast import LevelJob
from gradwire.types import LinkFacts

MBIT = 1e6 / 8
JOB = ReductionJob(12_800_000, 128 << 10, ratio=0.25)  # 3.2 million values at int8
JOBS = (LevelJob(JOB, JOB),)
RING = (LevelJob(JOB, JOB, exchange="ring"),)
Floats = NDArray[np.float64]


def measured(
    rate: Floats, trip: Floats | float, together: Floats | float = 0.0, floors: Floats | None = None
) -> MeasuredNetwork:
    """The network as ranks report it; `floors`: lower bounds in place of rates, where they are above 0."""
    size = len(rate)
    trips, most = np.broadcast_to(trip, (size, size)), np.broadcast_to(together, size)
    reports = {}
    for i, j in product(range(size), range(size)):
        least = 0.0 if floors is None else float(floors[i, j])
        known = 0.0 if least else float(rate[i, j])
        if i != j:
            reports[i, j] = LinkFacts(j, float(trips[i, j]), known, least or known, float(most[i]))
    return MeasuredNetwork.of(size, reports)


def lan(size: int = 8, mbit: float = 1000.0) -> MeasuredNetwork:
    """Equal hosts on a switch; what each sends at once is its line."""
    noise = np.random.default_rng(1).uniform(0.8, 1.2, (size, size))
    return measured(noise * mbit * MBIT / (size - 1), 2e-4, mbit * MBIT)


def nine_sites() -> MeasuredNetwork:
    """NetStorm's graph, with routers in the sites: each pair has its part of the links on its way."""
    links = netstorm9(9).matrix
    routes, flows = Routes(links), np.zeros_like(links.rate)
    ways = {(i, j): routes.route(i, j) for i, j in product(range(9), range(9)) if i != j}
    for way in ways.values():
        for hop in pairwise(way):
            flows[hop] += 1
    rate, trip = np.zeros((2, 9, 9))
    for pair, way in ways.items():
        rate[pair] = min(links.rate[hop] / flows[hop] for hop in pairwise(way))
        trip[pair] = sum(links.rtprop[hop] for hop in pairwise(way))
    return measured(rate, trip, rate.sum(axis=1))


def offices() -> MeasuredNetwork:
    """Two offices of four ranks, 20 Mbit/s down and 2 up, which all pairs of two offices share."""
    rate, trip = np.full((8, 8), 300 * MBIT), np.full((8, 8), 3e-4)
    for own, other in (((0, 4), (4, 8)), ((4, 8), (0, 4))):
        rate[slice(*own), slice(*other)] = 2 * MBIT / 16
        trip[slice(*own), slice(*other)] = 0.03
    return measured(rate, trip, 900 * MBIT)


def regions() -> MeasuredNetwork:
    """Four regions, 100 Mbit/s between them, except one pair."""
    rate = np.full((4, 4), 100 * MBIT)
    rate[0, 1] = rate[1, 0] = 5 * MBIT
    return measured(rate, 0.04, 300 * MBIT)


def wifi() -> MeasuredNetwork:
    """Five ranks on a switch, the last one on Wi-Fi: 30 Mbit/s for all its transfers."""
    rate, trip, most = np.full((6, 6), 200 * MBIT), np.full((6, 6), 2e-4), np.full(6, 1000 * MBIT)
    rate[5], rate[:, 5], most[5] = 6 * MBIT, 6 * MBIT, 30 * MBIT
    trip[5], trip[:, 5] = 0.004, 0.004
    return measured(rate, trip, most)


ALONE = tuple((rank,) for rank in range(9))


@pytest.mark.parametrize("jobs", [RING, JOBS], ids=["ring", "sharded"])
def test_equal_hosts_on_a_lan_stay_flat(jobs: tuple[LevelJob, ...]) -> None:
    choice = choose_routes(lan(), jobs, [range(8)])
    assert choice.plan is None
    assert choice.reason.startswith("links are about equal: 14")


@pytest.mark.parametrize(
    ("network", "sites", "planner", "gain"),
    [
        (nine_sites(), ALONE, "loadaware", 1.5),
        (offices(), ((0, 1, 2, 3), (4, 5, 6, 7)), "sites", 3.5),
        (regions(), ALONE[:4], "loadaware", 4.0),
        (wifi(), ((0, 1, 2, 3, 4), (5,)), "loadaware", 1.4),
    ],
    ids=["nine-sites", "offices", "regions", "wifi"],
)
def test_a_plan_is_chosen_where_a_link_or_a_line_is_the_limit(
    network: MeasuredNetwork, sites: tuple[tuple[int, ...], ...], planner: str, gain: float
) -> None:
    choice = choose_routes(network, JOBS, sites)
    assert choice.plan is not None, choice.reason
    assert choice.plan.planner == planner
    assert choice.flat / choice.planned > gain
    assert "along trees" in choice.reason
    assert "as a flat exchange" in choice.reason


def test_offices_send_one_copy_over_their_lines() -> None:
    choice = choose_routes(offices(), JOBS, ((0, 1, 2, 3), (4, 5, 6, 7)))
    assert choice.plan is not None
    crossing = 0.0
    for tree in choice.plan.trees:
        edges = [(a, b) for a, b in tree.parents.items() if (a < 4) != (b < 4)]
        crossing += tree.share * len(edges)
    assert crossing == pytest.approx(1.0)
    # A copy of the sum and one of the result, in both directions together, at 2 Mbit/s each.
    assert choice.planned == pytest.approx(JOB.nbytes * JOB.ratio / (2 * MBIT), rel=0.15)


def test_the_bad_link_between_two_regions_is_hardly_used() -> None:
    choice = choose_routes(regions(), JOBS, ALONE[:4])
    assert choice.plan is not None
    over_it = [tree.share for tree in choice.plan.trees if {(0, 1), (1, 0)} & set(tree.parents.items())]
    assert sum(over_it) < 0.15
    assert choice.reason.endswith("rank 0 sends to rank 1 at 5 Mbit/s")


@pytest.mark.parametrize("seen", [0.1, 0.3, 0.9])
def test_a_bad_link_is_hardly_used_although_the_others_were_never_filled(seen: float) -> None:
    """Good links showed a part of what they carry: as little as four times, or less than twice the bad one's rate."""
    good, floors = 20 * MBIT, np.full((4, 4), 20 * MBIT * seen)
    rate = np.full((4, 4), good)
    rate[0, 1] = rate[1, 0] = 0.5 * MBIT
    floors[0, 1] = floors[1, 0] = 0.0
    choice = choose_routes(measured(rate, 0.04, floors=floors), JOBS, ALONE[:4])
    assert choice.plan is not None, choice.reason
    real = Matrix.of(rate, 0.04)
    best = make_plan(real, JOB, "loadaware")
    assert predicted_seconds(real, choice.plan, JOB) < 1.3 * best.predicted


SMALL = ReductionJob(340_000, 128 << 10, ratio=0.14)  # 85,000 values at int4: latencies count as much as bytes


def one_slow_way(least: float) -> MeasuredNetwork:
    """Of every four links one is slow; the others carry 20 Mbit/s, of which `least` was seen, and were never filled."""
    rate, floors = np.full((4, 4), 20 * MBIT), np.full((4, 4), 20 * MBIT * least)
    for rank in range(4):
        rate[rank, (rank + 3) % 4], floors[rank, (rank + 3) % 4] = 1 * MBIT, 0.0
    return measured(rate, 0.04, floors=floors)


def test_trees_over_links_that_were_never_filled_are_tried_where_they_may_be_far_better() -> None:
    """With what was seen they would take about as long as the flat exchange, with more a fraction of it."""
    jobs = (LevelJob(SMALL, SMALL),)
    choice = choose_routes(one_slow_way(0.3), jobs, ALONE[:4])
    assert choice.plan is not None, choice.reason
    assert "if links carry more than was seen" in choice.reason
    assert choice.planned < WORTH * choice.flat
    network = one_slow_way(0.3)
    assert predicted_seconds(network.cautious(), choice.plan, SMALL) <= RISKED * choice.flat
    real = Matrix.of(np.where(np.isfinite(network.rate), 1 * MBIT, 20 * MBIT), 0.04)
    assert predicted_seconds(real, choice.plan, SMALL) < WORTH * choice.flat
    worse = choose_routes(one_slow_way(0.12), jobs, ALONE[:4])
    assert worse.plan is None, "clearly slower if the bounds are all there is"


def test_ranks_are_limited_by_their_line_only_where_all_of_their_links_were_filled() -> None:
    floors = np.zeros((3, 3))
    floors[0, 1] = 2 * MBIT
    network = measured(np.full((3, 3), 10 * MBIT), 0.02, 15 * MBIT, floors)
    known = network.bounds()
    assert known.up.tolist() == [np.inf, 15 * MBIT, 15 * MBIT]
    assert known.confidence[0, 1] < 1 == known.confidence[1, 0]
    assert network.hopeful().rate[0, 1] > 4 * known.rate[0, 1] == 4 * 2 * MBIT
    assert network.hopeful().rate[1, 0] == 10 * MBIT
    assert network.cautious().up[0] == 12 * MBIT


def test_the_rank_on_wifi_sums_nothing_for_others() -> None:
    choice = choose_routes(wifi(), JOBS, ALONE[:6])
    assert choice.plan is not None
    assert all(tree.root != 5 and 5 not in {b for a, b in tree.parents.items() if a != 5} for tree in choice.plan.trees)


def test_links_that_were_never_filled_are_no_reason_for_a_plan() -> None:
    """Only lower bounds: the flat exchange may be as fast as they like."""
    network = offices()
    bounds = measured(network.rate, network.rtprop, 900 * MBIT, floors=network.rate)
    choice = choose_routes(bounds, JOBS, ((0, 1, 2, 3), (4, 5, 6, 7)))
    assert choice.plan is None
    unknown = choose_routes(measured(np.ones((3, 3)), 0.01, floors=np.ones((3, 3))), JOBS, ALONE[:3])
    assert unknown.reason == "no link was filled yet: of every link only a lower bound is known"


def test_a_slow_link_is_avoided_over_links_of_which_only_a_lower_bound_is_known() -> None:
    rate = np.full((4, 4), 100 * MBIT)
    rate[0, 1] = rate[1, 0] = 5 * MBIT
    floors = np.where(rate > 50 * MBIT, 40 * MBIT, 0.0)
    choice = choose_routes(measured(rate, 0.04, 120 * MBIT, floors), JOBS, ALONE[:4])
    assert choice.plan is not None, choice.reason
    assert choice.planned < WORTH * choice.flat


def test_a_rank_is_not_expected_to_send_more_than_it_was_seen_to() -> None:
    """A ring fills one link of each rank; that the others carry something too does not make the line faster."""
    rate, floors = np.full((8, 8), 100 * MBIT), np.full((8, 8), 50 * MBIT)
    for rank in range(8):
        floors[rank, (rank + 1) % 8] = 0.0
    rate[3, 4] = 45 * MBIT
    choice = choose_routes(measured(rate, 2e-4, 100 * MBIT, floors), RING, [range(8)])
    assert choice.plan is None


def test_two_ranks_have_one_way() -> None:
    choice = choose_routes(lan(2), RING, [(0, 1)])
    assert choice == RouteChoice(0.0, 0.0, None, "two ranks have one way to sum")


def test_a_round_trip_counts_for_both_directions_and_a_missing_pair_is_noticed() -> None:
    network = MeasuredNetwork.of(3, {(0, 1): LinkFacts(1, 0.01, 5.0, 5.0, 9.0), (1, 0): LinkFacts(0, 0.02, 0.0, 3.0)})
    assert network.rtprop[0, 1] == network.rtprop[1, 0] == 0.01
    assert not network.complete
    assert network.known == 1
    assert network.up.tolist() == [9.0, np.inf, np.inf]


def small(ratio: float, **changes: Any) -> LevelJob:
    job = ReductionJob(3_200_000, 64 << 10, ratio)
    return LevelJob(job, job, **changes)


def test_every_level_is_predicted_both_ways() -> None:
    choice = choose_routes(regions(), [small(0.125), small(0.25), small(0.02, rounds=2)], ALONE[:4])
    present, more, masked = choice.levels
    assert present.flat < more.flat < 2.1 * present.flat
    assert present.trees < more.trees < 2.1 * present.trees
    assert masked.flat < present.flat
    assert choice.planned == min(one.trees for one in choice.levels)
    assert choice.flat == min(one.flat for one in choice.levels)


def test_indices_that_are_agreed_on_first_cost_the_latencies_again() -> None:
    once, twice = choose_routes(regions(), [small(0.02), small(0.02, rounds=2)], ALONE[:4]).levels
    assert twice.trees - once.trees == pytest.approx(0.04, rel=0.2), "up and down, 20 ms each"


def test_a_level_that_only_the_flat_exchange_can_use_speaks_against_trees() -> None:
    """Low rank sends a tenth of what trees send in its place, so the slow link is the limit of neither."""
    rate = np.full((4, 4), 100 * MBIT)
    rate[0, 1] = rate[1, 0] = 30 * MBIT
    network = measured(rate, 0.04, 300 * MBIT)
    both = choose_routes(network, [small(0.5)], ALONE[:4])
    assert both.plan is not None
    lowrank = LevelJob(small(0.01).flat, small(0.5).trees)
    choice = choose_routes(network, [lowrank, small(0.5)], ALONE[:4])
    assert choice.plan is None
    assert choice.reason.startswith("trees would not be clearly better")
