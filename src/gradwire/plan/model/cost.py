"""What a plan costs: the seconds from "gradient ready everywhere" to "sum everywhere".

In: Matrix, Load, Job. Out: a Forecast. Two models of the same world (links shared between trees, up- and
downlinks of members, one-way delay per hop, summing, compressed sizes, chunks pipelined through the tree):
  bound     closed form: the busiest resource, plus the longest way one chunk has to go. Arrays only; any size.
  schedule  every chunk of every edge, resources serving in turn (`plan.schedule`); up to SMALL moves.
The simulator is a third, which shares links fairly; tests hold the models together.
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

# Moves (chunk x edge x direction) up to which the exact schedule is worth its time: about 4 microseconds each.
SMALL = 6_000
SAMPLE = 64
FINEST = 8


@dataclass(frozen=True, slots=True)
class PlanCost:
    """Predicted seconds, the resource that is busy longest and for how long, and one chunk's longest way."""

    seconds: float
    busiest: str
    busy: float
    path: float


def forecast(matrix: Matrix, load: Load, job: ReductionJob, routes: Routes, beat: float = np.inf) -> PlanCost:
    """Predicted time; the schedule where it is affordable, else the closed form.

    Who cannot `beat` a time even at best is not looked at any closer.
    """
    bound = _bound(matrix, load, job, routes)
    moves = sum(2 * len(flow.child) * job.chunks(flow.share) for flow in load.flows)
    if moves > SMALL or matrix.size < 2 or bound.busy >= beat:
        return bound
    # Few chunks take turns too coarsely to be fair; what is saved by their being few pays for finer turns.
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
    # Trees of one plan are much alike: so many, evenly spaced, stand for all.
    for flow in load.flows[:: -(-len(load.flows) // SAMPLE)]:
        pieces = job.chunks(flow.share)
        crowded, lonely, slowest = _way(matrix, flow, job, pieces, reach)
        # Alone, a tree takes one chunk's way plus the other chunks through its slowest edge.
        longest = max(longest, crowded + (pieces - 1) * slowest)
        path = max(path, lonely)
    # Together, the busiest resource never rests but before its first chunk comes and while its last one goes on.
    return PlanCost(max(longest, busy + path), busiest, busy, path)


def _reach_times(matrix: Matrix, routes: Routes, load: Load) -> tuple[Floats, Floats]:
    """Seconds per byte and one-way delay for each pair that a tree uses; relayed pairs count every hop's delay."""
    with np.errstate(divide="ignore"):
        per_byte = 1.0 / matrix.effective()
    delay = matrix.rtprop / 2
    for source, destination in np.argwhere((load.pairs > 0) & (matrix.rate <= 0)).tolist():
        hops = list(pairwise(routes.route(source, destination)))
        per_byte[source, destination] = max(per_byte[hop] for hop in hops)
        delay[source, destination] = sum(matrix.rtprop[hop] / 2 for hop in hops)
    return per_byte, delay


def _way(
    matrix: Matrix, flow: Flows, job: ReductionJob, pieces: int, reach: tuple[Floats, Floats]
) -> tuple[float, float, float]:
    """Seconds for one chunk up and down the tree: (siblings in its way, nobody in its way, its slowest edge)."""
    per_byte, delay = reach
    size = matrix.size
    up_piece, down_piece = flow.up_bytes / pieces, flow.down_bytes / pieces
    up, down = up_piece * per_byte[flow.child, flow.parent], down_piece * per_byte[flow.source, flow.child]
    # A member that hears from many (or tells many) does so through one down- or uplink.
    heard, told = np.bincount(flow.parent, minlength=size), np.bincount(flow.source, minlength=size)
    shared_up = np.maximum(up, up_piece * heard[flow.parent] / matrix.down[flow.parent])
    shared_down = np.maximum(down, down_piece * told[flow.source] / matrix.up[flow.source])

    def way(up_hop: Floats, down_hop: Floats) -> float:
        hop = np.zeros(size)
        hop[flow.child] = up_hop + delay[flow.child, flow.parent] + up_piece / job.aggregation
        way_up, _ = path_sums(flow.parents, flow.root, hop)
        hop[flow.child] = down_hop + delay[flow.source, flow.child]
        way_down, _ = path_sums(flow.sources, flow.root, hop)
        return float(way_up.max() + way_down.max())

    return way(shared_up, shared_down), way(up, down), float(max(shared_up.max(), shared_down.max()))
