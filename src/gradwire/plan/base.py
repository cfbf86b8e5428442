"""What a planner is: one pure function from a Matrix and a Job to trees over member indices, with a sentence.

It may count on a connected matrix of at least two members. Edges without a direct link are allowed: relays carry them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.plan.model.cost import PlanCost
from gradwire.plan.model.load import Load
from gradwire.types import Tree


@dataclass(frozen=True, slots=True)
class Draft:
    """Trees over indices, why these, and load and forecast where the planner already made them."""

    trees: tuple[Tree, ...]
    reason: str
    seen: PlanCost | None = None
    load: Load | None = None


class Planner(Protocol):
    def __call__(self, matrix: Matrix, job: ReductionJob) -> Draft: ...
