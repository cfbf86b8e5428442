"""Processor time along trees: what members' processors add to the time that the network takes. Pure.

A member sends and receives the frames of all trees on one thread, and packs, adds or restores what is in them. Beside
a slow network that is hidden, except for the frames of one piece on its way up and down; where a member's thread is
busy for longer than the network is, it is the limit.
"""

from __future__ import annotations

from collections import Counter

from gradwire.plan.job import ReductionJob
from gradwire.plan.trees import sources_of, tree_depth
from gradwire.types import Plan


def processor_seconds(plan: Plan, job: ReductionJob, frame: float, network: float) -> float:
    """Seconds that are added to an exchange of `network` seconds; `frame` is what one end of a frame takes."""
    if not frame:
        return 0.0
    handled = frames_handled(plan, job)
    deepest = max(tree_depth(tree) for tree in plan.trees)
    # Every hop is sent and received, up and down.
    path = 2 * deepest * 2 * frame
    return path + max(0.0, max(handled.values(), default=0) * frame - network)


def frames_handled(plan: Plan, job: ReductionJob) -> Counter[int]:
    """How many frames each member sends or receives for one gradient."""
    handled: Counter[int] = Counter()
    for tree in plan.trees:
        pieces = job.chunks(tree.share)
        up = [(child, parent) for child, parent in tree.parents.items() if child != parent]
        down = [(source, member) for member, source in sources_of(tree).items() if source != member]
        for edge in up + down:
            for place, member in enumerate(route := plan.routes.get(edge, edge)):
                # A relay receives a frame and sends it.
                handled[member] += pieces * (2 if 0 < place < len(route) - 1 else 1)
    return handled
