"""Views: build the responses of the API from a RunData. Pure; the caller holds the run's lock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from gradwire.dashboard import schema
from gradwire.dashboard.run_data import MAX_MEMBERS, UNITS, RunData
from gradwire.dashboard.sampled_series import SampledSeries
from gradwire.dashboard.site_names import site_names
from gradwire.events import Decided, Planned
from gradwire.observe.geo import where
from gradwire.observe.outcome import RunOutcome, outcome_of
from gradwire.observe.reader import Damage
from gradwire.observe.run_status import Incident
from gradwire.observe.state import RankState
from gradwire.observe.verdict import judge

# Text from a file is truncated to this: a reason is a sentence, a name a few words.
MAX_TEXT: Final = 2000
MAX_NAME: Final = 80
# Trees of one plan that are sent to a browser.
MAX_TREES: Final = 64


def overview(data: RunData, run: schema.RunBrief, base: RunOutcome | None = None) -> schema.Overview:
    """The first page: the verdict, compared with `base` if given, and the main numbers."""
    state, split, whole = data.state, _split(data), data.state.whole_split
    recent = [_decision(data, *kept) for kept in list(state.decisions)[-5:]][::-1]
    return schema.Overview(
        run=run,
        verdict=_verdict(data, run.name, base),
        parameters=state.parameters,
        steps_per_second=1 / split.seconds if split and split.seconds > 0 else None,
        split=split,
        predicted_plain=state.predicted_plain,
        speedup=state.predicted_speedup,
        step_mean=whole.seconds if whole else None,
        gradient_bytes=state.gradient_bytes,
        wire_bytes=state.wire_bytes,
        plain_bytes=state.plain_bytes,
        network=_network(data),
        recent=recent,
        note=_note(data),
        seconds_left=state.time_left if run.live else None,
        faults=sum(state.faults.values()),
        guard=_guard(data),
        local_steps=_local_steps(data),
        carried=_carried(data),
    )


def catalogue(data: RunData) -> schema.Catalogue:
    """The names of all series."""
    return schema.Catalogue([_series_name(name, series) for name, series in data.series.items()])


def series_data(data: RunData, names: Sequence[str], start: float, end: float, width: int) -> schema.SeriesData:
    """The requested series; an unknown name gives an empty series."""
    return schema.SeriesData(start, end, [_series(data, name, start, end, width) for name in names])


def decisions(data: RunData, start: float, end: float) -> schema.Decisions:
    """The decisions between two times, and the one before them."""
    made = [_decision(data, *kept) for kept in data.state.decisions]
    before = [decision for decision in made if decision.at < start][-1:]
    inside = [decision for decision in made if start <= decision.at <= end]
    seen = data.state.changes + (1 if made else 0)
    return schema.Decisions(before + inside, seen - len(made))


def topology(data: RunData) -> schema.Topology:
    """Members and plans."""
    return schema.Topology(_members(data), [_plan(at, event) for at, event in data.plans])


def links(data: RunData) -> schema.Links:
    """The matrix of links. Ages are relative to the last recorded event."""
    now = data.state.elapsed
    shown = []
    for (source, destination), at in sorted(data.sensed_links.items()):
        link = data.state.links.get((source, destination))
        if link is None:
            continue
        pair = data.pairs.get((source, destination))
        known = (link.rate, link.rtt, link.rtprop, link.loss, link.queueing, link.window)
        shown.append(schema.LinkNow(source, destination, *known, max(0.0, now - at), pair.load() if pair else None))
    return schema.Links(_members(data), shown)


def transport(data: RunData) -> schema.TransportView:
    """gradwire's own transport: totals of the run, and each pair."""
    pairs = [
        schema.PairTransport(
            source,
            destination,
            pair.transfers,
            pair.nbytes,
            pair.missing,
            pair.returned,
            pair.retransmitted,
            pair.seconds,
            {name[:MAX_NAME]: count for name, count in pair.closes.items()},
        )
        for (source, destination), pair in sorted(data.pairs.items())
    ]
    total = data.state.transport
    closes = {name[:MAX_NAME]: count for name, count in total.closes.items()}
    sums = (total.transfers, total.nbytes, total.missing, total.returned, total.retransmitted)
    return schema.TransportView(*sums, closes, pairs)


def faults(data: RunData, damage: Damage) -> schema.Faults:
    """Incidents of the run, newest first, after those of its files."""
    state = data.state
    problems = [*damage.notes]
    if damage.lines:
        problems.append(f"{damage.lines} damaged lines of the recording were skipped")
    if data.impossible:
        problems.append(f"{data.impossible} events of the recording have impossible times")
    if state.dropped:
        problems.append(f"{state.dropped} events were not recorded: the writer could not keep up")
    files = [schema.FaultSeen(state.elapsed, None, None, "recording", text[:MAX_TEXT]) for text in problems]
    shown = [_fault(data, incident) for incident in state.incidents][::-1]
    return schema.Faults(files + shown, sum(state.faults.values()) - len(shown))


def configuration(data: RunData) -> schema.Configuration:
    """The settings of the lowest rank, and the settings of others that differ."""
    if not data.attached:
        return schema.Configuration({}, "", "", _members(data), [])
    (first_rank, first), *others = sorted(data.attached.items())
    reference = flat(first.config)
    differing = [
        schema.RankSetting(rank, name[:MAX_NAME], value)
        for rank, other in others
        for name, value in flat(other.config).items()
        if rank != first_rank and reference.get(name) != value
    ]
    versions = (first.gradwire[:MAX_NAME], first.torch[:MAX_NAME])
    return schema.Configuration(first.config, *versions, _members(data), differing[:200])


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as dotted names and their text."""
    found: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = str(value)[:MAX_TEXT]
    return found


def _verdict(data: RunData, name: str, base: RunOutcome | None) -> schema.VerdictView:
    found = judge(outcome_of(name, data.state), base)
    return schema.VerdictView(
        tone=found.tone,
        headline=found.headline[:MAX_TEXT],
        warning=found.warning[:MAX_TEXT],
        time=found.time[:MAX_TEXT],
        changed=found.changed[:MAX_TEXT],
        next=[step[:MAX_TEXT] for step in found.next],
    )


def _split(data: RunData) -> schema.StepSplitView | None:
    split = data.state.split
    return schema.StepSplitView(*split) if split else None


def _network(data: RunData) -> schema.NetworkNow | None:
    event = data.state.sensed
    if event is None:
        return None
    return schema.NetworkNow(event.bandwidth, event.rtprop, event.queueing, event.loss, event.confidence)


def _carried(data: RunData) -> schema.ChosenTransportView | None:
    chosen = data.state.chosen
    if chosen is None:
        return None
    return schema.ChosenTransportView(chosen.transport[:MAX_NAME], chosen.step, chosen.reason[:MAX_TEXT])


def _guard(data: RunData) -> schema.GuardView | None:
    acts = data.state.guard
    return schema.GuardView(acts.count, acts.step, acts.headline, acts.detail[:MAX_TEXT]) if acts.count else None


def _local_steps(data: RunData) -> schema.LocalStepsView | None:
    rounds, last = data.state.rounds, data.state.rounds.last
    if last is None:
        return None
    shape = (rounds.count, last.sync_every, last.fragments, last.delay)
    return schema.LocalStepsView(
        *shape, last.alignment, last.norm, last.outer_norm, rounds.waited, rounds.headline[:MAX_TEXT]
    )


def _note(data: RunData) -> schema.NoteNow | None:
    if not data.state.notes:
        return None
    state, last = data.state, data.state.notes[-1]
    loss, accuracy, epoch = state.noted("loss"), state.noted("accuracy"), state.noted("epoch")
    return schema.NoteNow(last.elapsed, last.noted.step, loss, accuracy, epoch, state.total_steps)


def _decision(data: RunData, time: float, event: Decided) -> schema.DecisionMade:
    at = max(0.0, time - (data.state.started or 0.0))
    return schema.DecisionMade(at, event.step, event.level[:MAX_NAME], event.reason[:MAX_TEXT], event.version)


def _fault(data: RunData, incident: Incident) -> schema.FaultSeen:
    at = max(0.0, incident.time - (data.state.started or 0.0))
    kind, detail = incident.kind[:MAX_NAME], incident.detail[:MAX_TEXT]
    return schema.FaultSeen(at, incident.rank, incident.step, kind, detail, list(incident.ranks)[:MAX_MEMBERS])


def _series_name(name: str, series: SampledSeries) -> schema.SeriesName:
    stem, _, rank = name.partition("@")
    return schema.SeriesName(name, UNITS[stem], int(rank) if rank else None, series.points)


def _series(data: RunData, name: str, start: float, end: float, width: int) -> schema.SeriesView:
    unit = UNITS.get(name.partition("@")[0], "")
    series = data.series.get(name)
    if series is None:
        return schema.SeriesView(name, unit, [], [], [], [])
    window = series.window(start, end, width)
    return schema.SeriesView(
        name, unit, *(values.tolist() for values in (window.at, window.low, window.high, window.mean))
    )


def _members(data: RunData) -> list[schema.MemberView]:
    known = {rank for rank in data.state.ranks if 0 <= rank < MAX_MEMBERS}
    known |= {rank for pair in data.sensed_links for rank in pair}
    sites = site_names(data.state, sorted(known))
    return [_member(rank, data.state.ranks.get(rank, RankState()), site) for rank, site in sites.items()]


def _member(rank: int, known: RankState, site: str) -> schema.MemberView:
    """A measured site has no place on a map, its hosts may have."""
    host, named = known.host[:MAX_NAME], known.site[:MAX_NAME]
    return schema.MemberView(rank, host, site[:MAX_NAME], *(where(named or host) or (None, None)))


def _plan(at: float, event: Planned) -> schema.PlanShown:
    trees = [
        schema.TreeShown(tree.root, tree.share, _edges(tree.parents), _reversed(_edges(tree.sources or tree.parents)))
        for tree in event.trees[:MAX_TREES]
    ]
    routes = [schema.RouteShown(list(route.path), route.side) for route in event.routes[:MAX_MEMBERS]]
    planner, reason = event.planner[:MAX_NAME], event.reason[:MAX_TEXT]
    return schema.PlanShown(at, event.step, event.version, planner, reason, event.predicted, trees, routes)


def _edges(parents: dict[int, int]) -> list[tuple[int, int]]:
    """(member, its parent), without the root."""
    return [(member, parent) for member, parent in sorted(parents.items()) if member != parent]


def _reversed(edges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(to, origin) for origin, to in edges]
