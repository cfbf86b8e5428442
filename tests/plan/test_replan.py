"""Awareness and hysteresis: what is known ages, noise changes nothing, a fallen link does, a lost one does at once."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gradwire.errors import ConfigError
from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.plan.membership.link_estimates import HALF_LIFE, Awareness, KnownNetwork, LinkObservation
from gradwire.plan.membership.replan import ReplanConfig, Replanner, predicted_seconds
from gradwire.plan.model.load import lay_out
from gradwire.plan.model.matrix_io import netstorm9
from gradwire.plan.model.routes import Routes
from gradwire.plan.planners.registry import make_plan
from gradwire.types import Plan

MB = 1 << 20
JOB = ReductionJob(100_000_000)


def seen(
    source: int, destination: int, rate: float, at: float, nbytes: int = 4 * MB, busy: bool = True
) -> LinkObservation:
    return LinkObservation(source, destination, rate, 0.02, nbytes, at, busy)


def test_rates_are_averaged_and_age() -> None:
    known = Awareness()
    known.report([seen(0, 1, 1.2e6, 101.0), seen(0, 1, 1e6, 100.0)])
    matrix = known.matrix((0, 1), now=101.0)
    assert matrix.rate[0, 1] == pytest.approx(1.05e6)
    assert matrix.rtprop[0, 1] == 0.02
    later = known.matrix((0, 1), now=101.0 + HALF_LIFE)
    assert later.age[0, 1] == HALF_LIFE
    assert later.confidence[0, 1] == pytest.approx(matrix.confidence[0, 1] / 2)


def test_a_link_that_fell_to_a_tenth_shows_in_one_sample() -> None:
    known = Awareness()
    known.report(seen(0, 1, 1e6, float(at)) for at in range(10))
    known.observe(seen(0, 1, 1e5, 10.0))
    assert known.matrix((0, 1), 10.0).rate[0, 1] == 1e5


def test_short_transfers_and_late_reports_do_not_change_a_rate() -> None:
    known = Awareness()
    known.observe(seen(0, 1, 1e6, 10.0))
    known.observe(seen(0, 1, 9e6, 11.0, nbytes=1000))
    known.observe(seen(0, 1, 9e6, 9.0))
    assert known.matrix((0, 1), 11.0).rate[0, 1] == 1e6


def test_a_blocked_pair_has_no_link_and_an_unknown_one_a_slow_guess() -> None:
    known = Awareness()
    known.observe(seen(0, 1, 1e6, 1.0))
    known.blocked(1, 0, 1.0)
    matrix = known.matrix((0, 1, 2), 1.0)
    assert matrix.rate[1, 0] == 0
    assert matrix.rate[0, 2] == 1e6
    assert matrix.confidence[0, 2] == 0
    assert matrix.cautious().rate[0, 2] == 0.5e6


def test_links_that_carry_nothing_are_probed_oldest_first() -> None:
    known = Awareness()
    known.observe(seen(0, 1, 1e6, 1000.0))
    known.observe(seen(1, 0, 1e6, 500.0))
    assert known.to_probe((0, 1), now=1010.0) == [(1, 0)]
    assert known.to_probe((0, 1, 2), now=1010.0, most=2) == [(0, 2), (1, 2)]


def bounded(good: float, bad: float) -> Matrix:
    """Four members, of whose good links only a lower bound is known."""
    rate, confidence = np.full((4, 4), good), np.full((4, 4), 0.5)
    rate[0, 1] = rate[1, 0] = bad
    confidence[0, 1] = confidence[1, 0] = 1.0
    return Matrix.of(rate, 0.02, confidence=confidence)


def test_links_of_which_only_a_lower_bound_is_known_are_probed_first_and_a_measurement_replaces_it() -> None:
    network = KnownNetwork(bounded(2e6, 1e6))
    network.begin(100.0)
    pairs = network.links.to_probe(range(4), now=101.0, most=20)
    assert len(pairs) == 10
    assert not {(0, 1), (1, 0)} & set(pairs)
    network.links.observe(seen(0, 2, 1.9e6, 102.0))
    assert (0, 2) not in network.links.to_probe(range(4), now=103.0, most=20)
    assert network.matrix(range(4), 103.0).rate[0, 2] == 1.9e6, "not averaged with the bound"


def test_every_link_is_news_a_few_times_only() -> None:
    known, random = Awareness(), np.random.default_rng(1)
    for at in range(200):
        known.observe(seen(0, 1, float(random.uniform(1e5, 1e7)), float(at), busy=False))
    assert 1 <= known.news <= 8, "a first bound, and each time one that is twice as high"
    before = known.news
    for at in range(200, 400):
        known.observe(seen(0, 1, float(random.uniform(1e5, 1e7)), float(at)))
    assert known.news == before + 1


def test_a_plan_for_lower_bounds_is_changed_before_the_interval_when_links_are_measured() -> None:
    supposed, known = bounded(2e6, 1e6), bounded(50e6, 1e6)
    replanner = Replanner(make_plan(supposed, JOB), ReplanConfig(interval=30.0), now=0.0)
    assert replanner.consider(known, JOB, 4.0)[0] is None, "nothing new is known of links: it may be noise"
    plan, reason = replanner.consider(known, JOB, 6.0, news=3)
    assert plan is not None, reason
    assert replanner.consider(bounded(60e6, 1e6), JOB, 8.0, news=3)[0] is None
    required = replanner.consider(known, JOB, 40.0, news=3)[1]
    assert required.endswith("a change requires 10%"), "the first change does not count as one that noise made"


@pytest.mark.slow
def test_noise_does_not_change_the_plan() -> None:
    matrix = netstorm9(1).matrix
    replanner = Replanner(make_plan(matrix, JOB), ReplanConfig(), now=0.0)
    noise = np.random.default_rng(0)
    for now in range(60, 600, 60):
        jittered = Matrix.of(matrix.rate * noise.uniform(0.97, 1.03, matrix.rate.shape), matrix.rtprop, matrix.members)
        plan, reason = replanner.consider(jittered, JOB, float(now))
        assert plan is None, reason
        assert reason.startswith("kept plan")


def test_a_link_that_falls_to_a_tenth_changes_it_and_not_before_the_interval() -> None:
    matrix = netstorm9(1).matrix
    first = make_plan(matrix, JOB)
    replanner = Replanner(first, ReplanConfig(interval=30.0), now=100.0)
    fallen = matrix.rate.copy()
    place = np.unravel_index(int(matrix.rate.argmax()), matrix.rate.shape)
    fallen[place] /= 10
    slower = Matrix.of(fallen, matrix.rtprop, matrix.members)
    assert replanner.consider(slower, JOB, 110.0)[0] is None
    plan, reason = replanner.consider(slower, JOB, 131.0)
    assert plan is not None
    assert plan.version == first.version + 1
    assert "less" in reason
    assert plan.predicted < 0.9 * predicted_seconds(slower, first, JOB)


class Training:
    """A job in virtual time: the plan in use decides what is measured, and how well.

    Links that are busy most of a step show their rate within 5 %; others show between a third of it and all of it, as
    a connection does that was not asked for more.
    """

    def __init__(self, rate: np.ndarray, rtprop: np.ndarray, seed: int) -> None:
        self.rate, self._rtprop = rate.copy(), rtprop
        self._noise = np.random.default_rng(seed)
        self.known = Awareness()
        members = range(len(rate))
        for source in members:
            for destination in members:
                if rate[source, destination] > 0:
                    self.known.observe(
                        LinkObservation(source, destination, rate[source, destination], 0.02, 4 * MB, 0.0)
                    )
                elif source != destination:
                    self.known.blocked(source, destination, 0.0)
        self.matrix = self.known.matrix(tuple(members), 0.0)

    @property
    def true(self) -> Matrix:
        return Matrix.of(self.rate, self._rtprop, tuple(range(len(self.rate))))

    def report(self, plan: Plan, now: float) -> None:
        true = self.true
        step = predicted_seconds(true, plan, JOB)
        links = lay_out(true, list(plan.trees), JOB, Routes(true)).links
        for source, destination in np.argwhere(links > 0).tolist():
            rate = self.rate[source, destination]
            busy = links[source, destination] / rate > 0.5 * step
            seen = rate * (self._noise.uniform(0.95, 1.05) if busy else self._noise.uniform(0.33, 1.0))
            self.known.observe(LinkObservation(source, destination, seen, 0.02, 4 * MB, now, busy))
        self.matrix = self.known.matrix(true.members, now)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.slow
def test_after_a_link_fell_to_a_tenth_one_or_two_changes_do(seed: int) -> None:
    start = netstorm9(seed + 1).matrix
    start = Matrix.of(start.rate, start.rtprop, tuple(range(start.size)))
    training = Training(start.rate, start.rtprop, seed)
    plan = make_plan(training.matrix, JOB)
    replanner = Replanner(plan, ReplanConfig(interval=30.0), now=0.0)
    links = lay_out(start, list(plan.trees), JOB, Routes(start)).links
    busiest = np.unravel_index(int(np.where(links > 0, links / np.maximum(start.rate, 1e-9), 0).argmax()), links.shape)
    changes = []
    for now in range(70, 370, 30):
        if now == 100:
            training.rate[busiest] /= 10
        training.report(replanner.plan, float(now))
        fresh, why = replanner.consider(training.matrix, JOB, float(now))
        if fresh is not None:
            changes.append((now, why))
    assert all(now >= 100 for now, _ in changes), changes
    assert 1 <= len(changes) <= 2, changes
    best = make_plan(training.true, JOB).predicted
    assert predicted_seconds(training.true, replanner.plan, JOB) < 1.3 * best


def test_a_lost_member_or_link_changes_it_at_once() -> None:
    matrix = netstorm9(1).matrix
    plan = make_plan(matrix, JOB)
    left = matrix.only([member for member in matrix.members if member != 9])
    assert predicted_seconds(left, plan, JOB) == math.inf
    changed, reason = Replanner(plan, ReplanConfig(), now=100.0).consider(left, JOB, 100.5)
    assert changed is not None
    assert changed.version != plan.version
    assert f"at once: plan {plan.version} needs" in reason


def test_pairs_that_routers_serve_are_never_relayed_by_members() -> None:
    matrix = netstorm9(1).matrix
    plan = make_plan(matrix, JOB, "star", relay=False)
    assert make_plan(matrix, JOB, "star").routes
    assert not plan.routes
    assert predicted_seconds(matrix, plan, JOB, relay=False) == pytest.approx(plan.predicted)
    kept, reason = Replanner(plan, ReplanConfig("star", relay=False), now=0.0).consider(matrix, JOB, 100.0)
    assert kept is None, reason
    fallen = Matrix.of(matrix.rate / 10, matrix.rtprop, matrix.members)
    better, _ = Replanner(plan, ReplanConfig("kary", relay=False), now=0.0).consider(fallen, JOB, 100.0)
    assert better is not None
    assert not better.routes


def test_what_a_member_carries_in_all_stays_known() -> None:
    known = Awareness()
    assert not known.informed
    known.observe(seen(0, 1, 1e6, 1.0))
    assert known.informed
    matrix = known.matrix((0, 1), 1.0, up=[5e5, 2e6], down=[3e6, 4e6])
    assert matrix.up.tolist() == [5e5, 2e6]
    assert matrix.effective()[0, 1] == 5e5


def test_a_senseless_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match="gain"):
        ReplanConfig(gain=2.0)
