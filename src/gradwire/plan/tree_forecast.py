"""Tree forecast: what sums along trees would take on a network, at every level that a job may use. Pure.

In: a Matrix, the jobs of the levels, the sites. Out: seconds of each level, and the plan for the best one. Plans are
made over all ranks and, where sites have several ranks, sites first; each for the present level and for next to no
bytes: what other levels take is linear in their bytes between the two. The planner whose best level is quickest counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.plan.model.processor import processor_seconds
from gradwire.plan.planners.registry import make_plan
from gradwire.types import Plan

# How ranks sum without trees: the process group's ring, or every rank sums a shard.
FlatExchange = Literal["ring", "sharded"]
# Bytes of an exchange whose time is that of its latencies: one packet for each of some trees.
THIN: Final = 4096


@dataclass(frozen=True, slots=True)
class LevelJob:
    """What is summed at one level, as a flat exchange and along trees; `rounds` are the trips up and down the trees: 2
    where members agree on indices first; `frame` what a member's processor takes to send or receive one frame."""

    flat: ReductionJob
    trees: ReductionJob
    rounds: int = 1
    exchange: FlatExchange = "sharded"
    frame: float = 0.0


@dataclass(frozen=True, slots=True)
class TreeForecast:
    """Of the planner whose best level is quickest: seconds of each level on the network, and of the processors of
    members on top; `job` is what is summed at the best level, which takes `seconds`."""

    network: tuple[float, ...]
    work: tuple[float, ...]
    seconds: float
    job: ReductionJob
    way: _Way

    @classmethod
    def of(cls, matrix: Matrix, jobs: Sequence[LevelJob], sites: Sequence[Sequence[int]]) -> TreeForecast:
        planned_for = _thick_enough(jobs)
        ways = [_Way.of(matrix, planned_for, "loadaware")]
        if 1 < len(sites) < matrix.size:
            ways.append(_Way.of(matrix, replace(planned_for, sites=site_names(sites)), "sites"))
        way = min(ways, key=lambda one: min(one.seconds(job) + one.work(job) for job in jobs))
        network, work = tuple(way.seconds(job) for job in jobs), tuple(way.work(job) for job in jobs)
        each = [sum(pair) for pair in zip(network, work, strict=True)]
        return cls(network, work, min(each), jobs[each.index(min(each))].trees, way)

    @property
    def planner(self) -> str:
        return self.way.plan.planner

    def plan(self, matrix: Matrix) -> Plan:
        """For the best level, on the network of the forecast."""
        made_for = self.way.job
        return (
            self.way.plan
            if replace(made_for, sites=self.job.sites) == self.job
            else self.way.plan_for(matrix, self.job)
        )


@dataclass(frozen=True, slots=True)
class _Way:
    """Trees of one planner: a plan for the present level, and the seconds of an exchange of next to no bytes."""

    plan: Plan
    job: ReductionJob
    thin: ReductionJob
    latency: float

    @classmethod
    def of(cls, matrix: Matrix, job: ReductionJob, planner: str) -> _Way:
        thin = thin_job(job)
        return cls(make_plan(matrix, job, planner), job, thin, make_plan(matrix, thin, planner).predicted)

    def seconds(self, job: LevelJob) -> float:
        once = between(job.trees, (self.thin, self.latency), (self.job, self.plan.predicted))
        return once + (job.rounds - 1) * self.latency

    def work(self, job: LevelJob) -> float:  # 4
        return processor_seconds(self.plan, job.trees, job.frame * job.rounds, self.seconds(job))

    def plan_for(self, matrix: Matrix, job: ReductionJob) -> Plan:
        return make_plan(matrix, replace(job, sites=self.job.sites), self.plan.planner)


def thin_job(job: ReductionJob) -> ReductionJob:
    """The same gradient in next to no bytes."""
    return replace(job, chunk=job.nbytes, ratio=min(job.ratio / 2, THIN / job.nbytes))


def _thick_enough(jobs: Sequence[LevelJob]) -> ReductionJob:
    """What trees sum at the present level; at the one with most bytes, where the present one has next to none."""
    present = jobs[0].trees
    return (
        present if present.ratio * present.nbytes >= 8 * THIN else max((j.trees for j in jobs), key=lambda j: j.ratio)
    )


def between(job: ReductionJob, thin: tuple[ReductionJob, float], thick: tuple[ReductionJob, float]) -> float:
    """Seconds of a job by those of two others that differ in their bytes."""
    more = (job.ratio - thin[0].ratio) / (thick[0].ratio - thin[0].ratio)
    return thin[1] + max(0.0, more) * max(0.0, thick[1] - thin[1])


def site_names(sites: Sequence[Sequence[int]]) -> Mapping[int, str]:
    """Rank -> name of its site."""
    return {rank: f"site{number}" for number, site in enumerate(sites) for rank in site}
