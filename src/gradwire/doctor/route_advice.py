"""Route advice: what plan = "auto" would do on the measured network, by the model that it uses itself. Pure.

In: measured round trips and rates of all pairs, the sites, the workload. Out: flat, trees or sites first, the predicted
times of an exchange, each at the best level that `auto` would use there before it has seen a gradient, and the reason.

What a running job knows better: rates of transfers that all ranks make at the same time (the doctor's pairs take turns,
so ranks that share a line share it with fewer others), what levels cost this model in steps, and steps: a job measures
trees before it keeps them.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.compress.build import build_codec
from gradwire.decide.auto import EXTRA_STEPS
from gradwire.decide.price import PriceList
from gradwire.doctor.predict import LADDER, Workload
from gradwire.doctor.types import FlowResult, Reach, RouteAdvice, SiteFacts, Way
from gradwire.errors import GradwireError
from gradwire.level import Level
from gradwire.plan.job import ReductionJob
from gradwire.plan.measured_network import MeasuredNetwork
from gradwire.plan.route_choice import RouteChoice, choose_routes
from gradwire.plan.tree_forecast import FlatExchange, LevelJob
from gradwire.tree.accumulator import frame_bytes
from gradwire.tree.frame_cost import frame_seconds
from gradwire.tree.partition import chunk_for
from gradwire.types import LinkFacts
from gradwire.units import Seconds

# What the advice may be wrong by, in words (`plan.route_choice.WORTH`).
CAVEAT = "Predicted times were within 30 % of measured ones in the lab"


def advise_routes(
    size: int, work: Workload, reaches: Sequence[Reach], flows: Sequence[FlowResult], sites: Sequence[SiteFacts]
) -> RouteAdvice:
    """`size` ranks. Where a path was not measured nothing is advised."""
    network = measured_network(size, reaches, flows)
    if size > 2 and not network.complete:
        return RouteAdvice("not known", reason="not every path between two ranks was measured")
    levels = [level for level in map(Level.parse, LADDER) if PriceList(()).of(level) <= 1 + EXTRA_STEPS]
    jobs = [_job(level, work.parameters) for level in reversed(levels)]
    try:
        choice = choose_routes(network, jobs, [site.ranks for site in sites])
    except GradwireError as error:  # a rank that no measured path leads to
        return RouteAdvice("not known", reason=str(error))
    return _advice(choice, list(reversed(levels)))


def measured_network(size: int, reaches: Sequence[Reach], flows: Sequence[FlowResult]) -> MeasuredNetwork:
    """The doctor's measurements as ranks of a job would report them: a transfer of a second fills its path, and no rank
    was seen to send more at once than in one of them."""
    trips = {(one.source, one.target): one.rtt for one in reaches if one.rtt is not None}
    rates = {(one.source, one.target): one.rate for one in flows if one.rate}
    most = [max((rate for (source, _), rate in rates.items() if source == rank), default=0.0) for rank in range(size)]
    reports = {
        pair: LinkFacts(pair[1], trips.get(pair, 0.0), rate, rate, most[pair[0]]) for pair, rate in rates.items()
    }
    return MeasuredNetwork.of(size, reports)


def route_sentence(advice: RouteAdvice) -> str:
    """The advice for people."""
    if advice.way == "not known":
        return f'plan = "auto": nothing can be said, {advice.reason}.'
    if advice.way == "flat":
        return f'plan = "auto" would sum between all ranks, as without a plan: {advice.reason}.'
    first = "each site first, then along trees between sites" if advice.way == "sites first" else "along trees"
    return (
        f'plan = "auto" would sum {first}: an exchange is predicted to take {Seconds(advice.trees)} at '
        f"{advice.trees_level} instead of {Seconds(advice.flat)} at {advice.flat_level} ({advice.reason}). "
        f"{CAVEAT}; it measures steps before it keeps trees, and compares them by the time to the same loss."
    )


def _job(level: Level, parameters: int) -> LevelJob:
    nbytes = 4 * parameters
    sent = nbytes if level.off else build_codec(level).size_of(parameters)
    flat, trees = (
        ReductionJob(nbytes, chunk_for(nbytes, size / nbytes), size / nbytes)
        for size in (sent, frame_bytes(level, parameters))
    )
    exchange: FlatExchange = "ring" if level.off else "sharded"
    return LevelJob(flat, trees, exchange=exchange, frame=frame_seconds(level, trees.chunk // 4))


def _advice(choice: RouteChoice, levels: Sequence[Level]) -> RouteAdvice:
    if not choice.levels:
        return RouteAdvice("flat", reason=choice.reason)
    flat = min(range(len(levels)), key=lambda index: choice.levels[index].flat)
    along = [one.trees + one.work for one in choice.levels]
    trees = min(range(len(levels)), key=lambda index: along[index])
    way: Way = "flat"
    if choice.plan is not None:
        way = "sites first" if choice.plan.planner == "sites" else "trees"
    return RouteAdvice(
        way, choice.levels[flat].flat, str(levels[flat]), along[trees], str(levels[trees]), choice.reason
    )
