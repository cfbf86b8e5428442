"""Hierarchy: members of a site send to the site's leader, leaders send to the best-connected leader.

Sites come from the job (member -> site name). Without names, members with a round trip below a quarter of the median
(or, without round trips, with links above four times the median rate) count as one site.
"""

from __future__ import annotations

import numpy as np

from gradwire.plan.base import Draft
from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Floats, Matrix
from gradwire.types import Tree


def hierarchy(matrix: Matrix, job: ReductionJob) -> Draft:
    """One tree: members, leaders, root."""
    rate = matrix.effective()
    groups = groups_of(matrix, job)
    leaders = [max(group, key=lambda member: _reach(rate, member, group)) for group in groups]
    root = max(leaders, key=lambda member: _reach(rate, member, leaders))
    parents = {member: leader for group, leader in zip(groups, leaders, strict=True) for member in group}
    parents |= dict.fromkeys(leaders, root)
    reason = f"{len(groups)} sites sum internally, then leaders send to member {matrix.members[root]}"
    return Draft((Tree(root, parents, 1.0),), reason)


def _reach(rate: Floats, member: int, others: list[int]) -> float:
    """The slowest link that a leader would use, in both directions; negative: the number of members without a link."""
    rest = [other for other in others if other != member]
    if not rest:
        return float(rate[member].sum())
    links = np.minimum(rate[member, rest], rate[rest, member])
    return float(links.min()) if (links > 0).all() else -float((links <= 0).sum())


def groups_of(matrix: Matrix, job: ReductionJob) -> list[list[int]]:
    """The members of each site, by index."""
    if job.sites:
        named: dict[str, list[int]] = {}
        for row, member in enumerate(matrix.members):
            named.setdefault(job.sites.get(member, f"alone-{member}"), []).append(row)
        return list(named.values())
    off = ~np.eye(matrix.size, dtype=bool)
    if matrix.rtprop[off].any():
        near = matrix.rtprop < np.median(matrix.rtprop[off]) / 4
    else:
        near = matrix.rate > 4 * np.median(matrix.rate[off])
    return _clusters(near & near.T & (matrix.rate > 0) & (matrix.rate.T > 0))


def _clusters(near: np.ndarray) -> list[list[int]]:
    """Each member joins the first group whose first member is near; otherwise it starts a new group."""
    groups: list[list[int]] = []
    for member in range(len(near)):
        joined = next((group for group in groups if near[group[0], member]), None)
        if joined is None:
            groups.append([member])
        else:
            joined.append(member)
    return groups
