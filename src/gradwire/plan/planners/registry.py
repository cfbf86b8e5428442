"""Registry: planners by name, and `make_plan`, which runs one.

In: name, Matrix, ReductionJob, version. Out: a Plan over members, with relays for edges without a link, side routes,
predicted time and reason. ConfigError for an unknown name, LinkError for disconnected members.
"""

from __future__ import annotations

from types import MappingProxyType

from gradwire.errors import ConfigError
from gradwire.plan.base import Planner
from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.plan.model.auxiliary import side_routes
from gradwire.plan.model.cost import forecast
from gradwire.plan.model.load import lay_out
from gradwire.plan.model.routes import Routes, require_connected
from gradwire.plan.planners.fapt import fapt, fapt_single
from gradwire.plan.planners.fixed import kary, ring, sharded_star, star
from gradwire.plan.planners.hierarchy import hierarchy
from gradwire.plan.planners.loadaware import loadaware
from gradwire.plan.planners.pairwise import pairwise
from gradwire.plan.planners.sites import sites
from gradwire.plan.planners.weighted import weighted_star
from gradwire.plan.trees import relabel, sources_of
from gradwire.types import Plan, Tree
from gradwire.units import Seconds

DEFAULT = "loadaware"
PLANNERS: MappingProxyType[str, Planner] = MappingProxyType(
    {
        "star": star,
        "sharded": sharded_star,
        "weighted": weighted_star,
        "ring": ring,
        "kary": kary,
        "pairwise": pairwise,
        "hierarchy": hierarchy,
        "sites": sites,
        "fapt1": fapt_single,
        "fapt": fapt,
        "loadaware": loadaware,
    }
)


def make_plan(matrix: Matrix, job: ReductionJob, name: str = DEFAULT, version: int = 1, relay: bool = True) -> Plan:
    """A plan for all members of the matrix; without `relay`, edges without a link are left to the network's routers."""
    planner = PLANNERS.get(name)
    if planner is None:
        raise ConfigError(f"planner: {name!r} is not a planner; choose one of {', '.join(PLANNERS)}")
    if not matrix.size:
        raise ConfigError("planner: the matrix has no members; a plan needs at least one")
    require_connected(matrix)
    if matrix.size == 1:
        only = matrix.members[0]
        tree = Tree(only, {only: only}, 1.0)
        return Plan(version, name, (tree,), 0.0, "a single member sends nothing", chunk=job.chunk)
    draft = planner(matrix, job)
    routes = Routes(matrix)
    load = draft.load or lay_out(matrix, draft.trees, job, routes)
    cost = draft.cost or forecast(matrix, load, job, routes)
    reason = f"{draft.reason}; predicted {Seconds(cost.seconds)}, of which {cost.busiest} is busy {Seconds(cost.busy)}"
    relayed = _relays(matrix, draft.trees, routes) if relay else {}
    side = side_routes(matrix, load)
    trees = tuple(relabel(tree, matrix.members) for tree in draft.trees)
    return Plan(version, name, trees, cost.seconds, reason, side, relayed, job.chunk)


def _relays(matrix: Matrix, trees: tuple[Tree, ...], routes: Routes) -> dict[tuple[int, int], tuple[int, ...]]:
    """Routes of tree edges without a direct link, by member."""
    if (matrix.rate > 0).sum() == matrix.size * (matrix.size - 1):
        return {}
    found: dict[tuple[int, int], tuple[int, ...]] = {}
    for tree in trees:
        edges = set(tree.parents.items()) | {(source, member) for member, source in sources_of(tree).items()}
        for source, destination in edges:
            if source != destination and not matrix.rate[source, destination] > 0:
                path = tuple(matrix.members[row] for row in routes.route(source, destination))
                found[path[0], path[-1]] = path
    return found
