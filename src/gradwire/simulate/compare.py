"""Compare planners on a network: plan, predict and simulate one synchronisation with each.

In: Matrix, Job, names of planners. Out: a Row each, fastest first when sorted by `simulated`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gradwire.flow import Plan
from gradwire.plan.job import Job
from gradwire.plan.matrix import Matrix
from gradwire.plan.registry import make_plan
from gradwire.simulate.engine import Engine, Run
from gradwire.simulate.world import build

# Chunks that end within this part of the predicted time of each other end together: exact where runs are short
# anyway, a per mille of error where they would take minutes.
EXACT_MOVES = 20_000
GRAIN = 2e-4


@dataclass(frozen=True, slots=True)
class Row:
    """One planner's result; seconds, `planning` measured on this machine."""

    planner: str
    simulated: float
    predicted: float
    planning: float
    trees: int
    sideways: int
    reason: str


def simulate(matrix: Matrix, plan: Plan, job: Job, side_routes: bool = False) -> Run:
    """One synchronisation under one plan."""
    moves = sum(2 * (matrix.size - 1) * job.chunks(tree.share) for tree in plan.trees)
    window = 0.0 if moves <= EXACT_MOVES else GRAIN * plan.predicted * min(4.0, moves / EXACT_MOVES)
    return Engine(build(matrix, plan, job, side_routes), window).run()


def compare(matrix: Matrix, job: Job, planners: Iterable[str], side_routes: bool = False) -> Iterator[Row]:
    """A row per planner, as they finish."""
    for name in planners:
        start = time.perf_counter()
        plan = make_plan(matrix, job, name)
        planning = time.perf_counter() - start
        run = simulate(matrix, plan, job, side_routes)
        yield Row(name, run.seconds, plan.predicted, planning, len(plan.trees), run.sideways, plan.reason)
