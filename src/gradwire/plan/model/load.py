"""Load of trees on the network: bytes per pair of members, and per link when relayed pairs are replaced by their links.

In: Matrix, trees over indices, ReductionJob. Out: a Load, as arrays; the cost model and the side routes use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Floats, Ints, Matrix
from gradwire.plan.model.routes import Routes
from gradwire.plan.trees import parent_array, path_sums, subtree_sizes
from gradwire.types import Tree


@dataclass(frozen=True, slots=True)
class Flows:
    """A tree as arrays over its non-root members: who sends how many bytes to whom, up and down."""

    share: float
    child: Ints
    parent: Ints
    source: Ints
    up_bytes: Floats
    down_bytes: float
    root: int
    parents: Ints
    sources: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """A plan's flows, and their bytes per pair and per link."""

    flows: tuple[Flows, ...]
    pairs: Floats
    links: Floats


def lay_out(matrix: Matrix, trees: Sequence[Tree], job: ReductionJob, routes: Routes) -> Load:
    """The load of trees over indices."""
    flows = _flows(matrix, trees, job)
    pairs = _pair_bytes(matrix, flows)
    return Load(flows, pairs, _unfold(matrix, pairs, routes))


def _flows(matrix: Matrix, trees: Sequence[Tree], job: ReductionJob) -> tuple[Flows, ...]:
    """Trees as arrays, with the wire bytes of compressed sums."""
    flows = []
    for tree in trees:
        parents = parent_array(tree.parents)
        sources = parents if not tree.sources else parent_array(tree.sources)
        child = np.delete(np.arange(matrix.size), tree.root)
        total = tree.share * job.nbytes
        if job.growth:
            _, depth = path_sums(parents, tree.root, np.zeros(matrix.size))
            sizes = subtree_sizes(parents, depth)[child]
            up_bytes = total * np.array([job.wire(int(size)) for size in sizes])
        else:
            up_bytes = np.full(len(child), total * job.ratio)
        down = total * job.wire(matrix.size)
        flows.append(
            Flows(tree.share, child, parents[child], sources[child], up_bytes, down, tree.root, parents, sources)
        )
    return tuple(flows)


def _pair_bytes(matrix: Matrix, flows: Sequence[Flows]) -> Floats:
    """Bytes of every ordered pair, before relayed pairs are replaced by their links."""
    size = matrix.size
    ends = [flow.child * size + flow.parent for flow in flows] + [flow.source * size + flow.child for flow in flows]
    loads = [flow.up_bytes for flow in flows] + [np.full(len(flow.child), flow.down_bytes) for flow in flows]
    total: Floats = np.bincount(np.concatenate(ends), np.concatenate(loads), size * size).astype(np.float64)
    return total.reshape(size, size)


def _unfold(matrix: Matrix, pairs: Floats, routes: Routes) -> Floats:
    """Bytes on every link, including relayed ones."""
    links = np.where(matrix.rate > 0, pairs, 0.0)
    for source, destination in np.argwhere((pairs > 0) & (matrix.rate <= 0)).tolist():
        for hop in pairwise(routes.route(source, destination)):
            links[hop] += pairs[source, destination]
    return links


def busy_times(matrix: Matrix, links: Floats) -> tuple[Floats, Floats, Floats]:
    """Seconds each link, uplink and downlink is busy."""
    with np.errstate(divide="ignore", invalid="ignore"):
        link = np.where(links > 0, links / matrix.rate, 0.0)
    return link, links.sum(axis=1) / matrix.up, links.sum(axis=0) / matrix.down
