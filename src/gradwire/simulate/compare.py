"""Compare: plans, predicts and simulates one synchronisation with each planner.

In: a Matrix, a ReductionJob, names of planners. Out: one Row per planner.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.plan.planners.registry import make_plan
from gradwire.simulate.engine import FlowSimulator, SimulatedRun
from gradwire.simulate.world import build
from gradwire.types import Plan

# A move is a chunk over a tree edge. Up to EXACT moves, rates are recomputed at every change of load; above, so often
# that all recomputations together touch about WORK lanes: some seconds.
EXACT, WORK = 4_000, 1_000_000
# Above MOST moves, chunks are made larger, up to one per tree; if there are still more than TOO_MANY, nothing is
# simulated.
MOST, TOO_MANY = 200_000, 400_000


@dataclass(frozen=True, slots=True)
class Row:
    """One planner's result in seconds; `planning` is measured on this machine. `simulated` None: too large to simulate.

    `packets` is the packet simulator's result after the first synchronisation; None unless requested.
    """

    planner: str
    simulated: float | None
    predicted: float
    planning: float
    trees: int
    sideways: int
    reason: str
    packets: float | None = None


def simulate(matrix: Matrix, plan: Plan, job: ReductionJob, side_routes: bool = False) -> SimulatedRun | None:
    """One synchronisation with one plan; None if it has more than TOO_MANY moves."""
    moves = _moves(matrix, plan, job)
    while moves > MOST and job.chunk < job.nbytes:
        job = replace(job, chunk=2 * job.chunk)
        moves = _moves(matrix, plan, job)
    if moves > TOO_MANY:
        return None
    world = build(matrix, plan, job, side_routes)
    updates = min(600, max(100, WORK // len(world.crossed)))
    return FlowSimulator(world, 0.0 if moves <= EXACT else plan.predicted / updates).run()


def _moves(matrix: Matrix, plan: Plan, job: ReductionJob) -> int:
    return sum(2 * (matrix.size - 1) * job.chunks(tree.share) for tree in plan.trees)


def compare(matrix: Matrix, job: ReductionJob, planners: Iterable[str], side_routes: bool = False) -> Iterator[Row]:
    """One row per planner, as they finish."""
    for name in planners:
        start = time.perf_counter()
        plan = make_plan(matrix, job, name)
        planning = time.perf_counter() - start
        run = simulate(matrix, plan, job, side_routes)
        seconds, sideways = (run.seconds, run.sideways) if run else (None, 0)
        yield Row(name, seconds, plan.predicted, planning, len(plan.trees), sideways, plan.reason)
