"""Plan regret: of some plans for links of which little is known, the one that is least wrong whatever they carry. Pure.

In: plans, and matrices that are all possible. Out: one of the plans. On each matrix a plan takes some times as long as
the best of them there; of each plan the worst of these counts. So a plan for lower bounds alone, which sends a share
over a link that is known to be bad, loses against one that avoids it, unless avoiding it is dear where the bounds are
all there is.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.plan.membership.replan import predicted_seconds
from gradwire.types import Plan


def least_regret(plans: Sequence[Plan], matrices: Sequence[Matrix], job: ReductionJob) -> Plan:
    """The first of the plans whose worst factor is the least; equal plans are compared once."""
    seconds = [[predicted_seconds(matrix, plan, job) for plan in plans] for matrix in matrices]
    worst = [max(row[index] / min(row) for row in seconds) for index in range(len(plans))]
    return plans[worst.index(min(worst))]
