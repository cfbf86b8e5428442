"""Plan cost: predicts the seconds from "gradient ready on all members" to "result on all members".

In: Matrix, Load, ReductionJob. Out: a PlanCost. Two models of the same network (links shared between trees, up- and
downlinks of members, one-way delay per hop, summing, compressed sizes, chunks pipelined through the tree):
  bound     closed form: the busiest resource, plus the longest path of one chunk. Arrays only; any size.
  schedule  every chunk of every edge, resources serving in turn (`plan.model.schedule`); up to SMALL moves.
The simulator is a third model, which shares links fairly; tests compare them: within a tenth, and within three
tenths where a tree has at most four chunks and the order of two chunks on one link decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Floats, Matrix
from gradwire.plan.model.load import Flows, Load, busy_times
from gradwire.plan.model.moves import as_moves
from gradwire.plan.model.routes import Routes
from gradwire.plan.model.schedule import makespan
from gradwire.plan.trees import path_sums

# The most moves (chunk x edge x direction) for the exact schedule, at about 4 microseconds each.
SMALL = 6_000
SAMPLE = 64
FINEST = 8


@dataclass(frozen=True, slots=True)
class PlanCost:
    """Predicted seconds, the busiest resource and its busy time, and the longest path of one chunk in seconds."""

    seconds: float
    busiest: str
    busy: float
    path: float


def forecast(matrix: Matrix, load: Load, job: ReductionJob, routes: Routes, beat: float = np.inf) -> PlanCost:
    """The predicted cost: by the schedule where that is affordable, else by the closed form.

    A plan that cannot be faster than `beat` is not scheduled.
    """
    bound = _bound(matrix, load, job, routes)
    moves = sum(2 * len(flow.child) * job.chunks(flow.share) for flow in load.flows)
    if moves > SMALL or matrix.size < 2 or bound.busy >= beat:
        return bound
    # With few chunks, turns of whole chunks are too coarse to be fair, and there is time for finer turns.
    slices = max(1, min(FINEST, SMALL // (4 * moves)))
    return PlanCost(makespan(*as_moves(matrix, load.flows, job, routes), slices), bound.busiest, bound.busy, bound.path)


def _bound(matrix: Matrix, load: Load, job: ReductionJob, routes: Routes) -> PlanCost:
    if matrix.size < 2:
        return PlanCost(0.0, "nothing", 0.0, 0.0)
    link, up, down = busy_times(matrix, load.links)
    names = matrix.members
    worst = np.unravel_index(int(link.argmax()), link.shape)
    busiest, busy = f"link {names[int(worst[0])]}->{names[int(worst[1])]}", float(link[worst])
    for what, times in (("uplink of", up), ("downlink of", down)):
        if times.max() > busy:
            busiest, busy = f"{what} {names[int(times.argmax())]}", float(times.max())
    reach = _reach_times(matrix, routes, load)
    path = longest = 0.0
    # Trees of one plan are similar: at most SAMPLE of them, evenly spaced, represent all.
    for flow in load.flows[:: -(-len(load.flows) // SAMPLE)]:
        pieces = job.chunks(flow.share)
        shared, alone, slowest = _path_seconds(matrix, flow, job, pieces, reach)
        # One tree alone: the path of one chunk, plus the other chunks on its slowest edge.
        longest = max(longest, shared + (pieces - 1) * slowest)
        path = max(path, alone)
    # All trees: the busiest resource is idle only before its first chunk arrives and while its last one travels on.
    return PlanCost(max(longest, busy + path), busiest, busy, path)


def _reach_times(matrix: Matrix, routes: Routes, load: Load) -> tuple[Floats, Floats]:
    """Seconds per byte and one-way delay for each pair that a tree uses; a relayed pair has the delays of all hops."""
    with np.errstate(divide="ignore"):
        per_byte = 1.0 / matrix.effective()
    delay = matrix.rtprop / 2
    for source, destination in np.argwhere((load.pairs > 0) & (matrix.rate <= 0)).tolist():
        hops = list(pairwise(routes.route(source, destination)))
        per_byte[source, destination] = max(per_byte[hop] for hop in hops)
        delay[source, destination] = sum(matrix.rtprop[hop] / 2 for hop in hops)
    return per_byte, delay


def _path_seconds(
    matrix: Matrix, flow: Flows, job: ReductionJob, pieces: int, reach: tuple[Floats, Floats]
) -> tuple[float, float, float]:
    """Seconds of one chunk up and down the tree: (with its siblings' chunks, alone, on its slowest edge)."""
    per_byte, delay = reach
    size = matrix.size
    up_piece, down_piece = flow.up_bytes / pieces, flow.down_bytes / pieces
    up, down = up_piece * per_byte[flow.child, flow.parent], down_piece * per_byte[flow.source, flow.child]
    # All children of a member share its downlink, all its receivers share its uplink.
    children, receivers = np.bincount(flow.parent, minlength=size), np.bincount(flow.source, minlength=size)
    shared_up = np.maximum(up, up_piece * children[flow.parent] / matrix.down[flow.parent])
    shared_down = np.maximum(down, down_piece * receivers[flow.source] / matrix.up[flow.source])

    def seconds(up_hop: Floats, down_hop: Floats) -> float:
        hop = np.zeros(size)
        hop[flow.child] = up_hop + delay[flow.child, flow.parent] + up_piece / job.aggregation
        path_up, _ = path_sums(flow.parents, flow.root, hop)
        hop[flow.child] = down_hop + delay[flow.source, flow.child]
        path_down, _ = path_sums(flow.sources, flow.root, hop)
        return float(path_up.max() + path_down.max())

    return seconds(shared_up, shared_down), seconds(up, down), float(max(shared_up.max(), shared_down.max()))
