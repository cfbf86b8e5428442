"""Interface of a planner: a pure function from a Matrix and a ReductionJob to trees over member indices, with a reason.

The matrix is connected and has at least two members. Trees may use edges without a direct link: members relay for them.
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
    """Trees over indices, the reason, and cost and load where the planner already computed them."""

    trees: tuple[Tree, ...]
    reason: str
    cost: PlanCost | None = None
    load: Load | None = None


class Planner(Protocol):
    def __call__(self, matrix: Matrix, job: ReductionJob) -> Draft: ...
