"""Views: a Book in, the answers of the interface out. Pure; whoever calls holds the book's lock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from gradwire.dashboard import answers as a
from gradwire.dashboard.book import MAX_MEMBERS, UNITS, RunData
from gradwire.dashboard.column import Column
from gradwire.events import Decided, Planned
from gradwire.observe.geo import where
from gradwire.observe.reader import Damage
from gradwire.observe.run_status import Incident
from gradwire.observe.state import RankState

# Text from a file is cut here: a reason is a sentence, a name a few words.
MAX_TEXT: Final = 2000
MAX_NAME: Final = 80
# Edges of one plan that are sent to a browser.
MAX_TREES: Final = 64


def overview(book: RunData, run: a.RunBrief) -> a.Overview:
    """The first page."""
    state, split, whole = book.state, _split(book), book.state.whole_split
    recent = [_decision(book, *kept) for kept in list(state.decisions)[-5:]][::-1]
    return a.Overview(
        run=run,
        parameters=state.parameters,
        steps_per_second=1 / split.seconds if split and split.seconds > 0 else None,
        split=split,
        predicted_plain=state.predicted_plain,
        speedup=state.predicted_speedup,
        step_mean=whole.seconds if whole else None,
        gradient_bytes=state.gradient_bytes,
        wire_bytes=state.wire_bytes,
        plain_bytes=state.plain_bytes,
        network=_network(book),
        recent=recent,
        note=_note(book),
        seconds_left=state.time_left if run.live else None,
        faults=sum(state.faults.values()),
    )


def catalogue(book: RunData) -> a.Catalogue:
    """The names of all series."""
    return a.Catalogue([_series_name(name, column) for name, column in book.columns.items()])


def series_data(book: RunData, names: Sequence[str], start: float, end: float, width: int) -> a.SeriesData:
    """Buckets of the series asked for; a name nobody recorded gives an empty series."""
    return a.SeriesData(start, end, [_series(book, name, start, end, width) for name in names])


def decisions(book: RunData, start: float, end: float) -> a.Decisions:
    """The decisions of a stretch of time, and the one in force when it began."""
    made = [_decision(book, *kept) for kept in book.state.decisions]
    before = [decision for decision in made if decision.at < start][-1:]
    inside = [decision for decision in made if start <= decision.at <= end]
    seen = book.state.changes + (1 if made else 0)
    return a.Decisions(before + inside, seen - len(made))


def topology(book: RunData) -> a.Topology:
    """Members and plans."""
    return a.Topology(_members(book), [_plan(at, event) for at, event in book.plans])


def links(book: RunData) -> a.Links:
    """The matrix. Ages count from the end of what was recorded."""
    now = book.state.elapsed
    shown = []
    for (source, destination), at in sorted(book.sensed_links.items()):
        link = book.state.links.get((source, destination))
        if link is None:
            continue
        pair = book.pairs.get((source, destination))
        known = (link.rate, link.rtt, link.rtprop, link.loss, link.queueing, link.window)
        shown.append(a.LinkNow(source, destination, *known, max(0.0, now - at), pair.load() if pair else None))
    return a.Links(_members(book), shown)


def transport(book: RunData) -> a.TransportView:
    """gradwire's own transport: the run's totals, and each pair."""
    pairs = [
        a.PairTransport(
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
        for (source, destination), pair in sorted(book.pairs.items())
    ]
    total = book.state.transport
    closes = {name[:MAX_NAME]: count for name, count in total.closes.items()}
    sums = (total.transfers, total.nbytes, total.missing, total.returned, total.retransmitted)
    return a.TransportView(*sums, closes, pairs)


def faults(book: RunData, damage: Damage) -> a.Faults:
    """What went wrong in the run, the newest first; before it what is wrong with its files."""
    state = book.state
    wrong = [*damage.notes]
    if damage.lines:
        wrong.append(f"{damage.lines} damaged lines of the recording were skipped")
    if book.impossible:
        wrong.append(f"{book.impossible} events of the recording have impossible times")
    if state.dropped:
        wrong.append(f"{state.dropped} events were not recorded: the writer could not keep up")
    files = [a.FaultSeen(state.elapsed, None, None, "recording", text[:MAX_TEXT]) for text in wrong]
    shown = [_fault(book, incident) for incident in state.incidents][::-1]
    return a.Faults(files + shown, sum(state.faults.values()) - len(shown))


def configuration(book: RunData) -> a.Configuration:
    """What the lowest rank was told, and where others were told something else."""
    if not book.attached:
        return a.Configuration({}, "", "", _members(book), [])
    (first_rank, first), *others = sorted(book.attached.items())
    reference = flat(first.config)
    differing = [
        a.RankSetting(rank, name[:MAX_NAME], value)
        for rank, other in others
        for name, value in flat(other.config).items()
        if rank != first_rank and reference.get(name) != value
    ]
    versions = (first.gradwire[:MAX_NAME], first.torch[:MAX_NAME])
    return a.Configuration(first.config, *versions, _members(book), differing[:200])


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as dotted names and their text."""
    found: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = str(value)[:MAX_TEXT]
    return found


def _split(book: RunData) -> a.StepSplitView | None:
    split = book.state.split
    return a.StepSplitView(*split) if split else None


def _network(book: RunData) -> a.NetworkNow | None:
    event = book.state.sensed
    if event is None:
        return None
    return a.NetworkNow(event.bandwidth, event.rtprop, event.queueing, event.loss, event.confidence)


def _note(book: RunData) -> a.NoteNow | None:
    if not book.state.notes:
        return None
    state, last = book.state, book.state.notes[-1]
    loss, accuracy, epoch = state.noted("loss"), state.noted("accuracy"), state.noted("epoch")
    return a.NoteNow(last.elapsed, last.noted.step, loss, accuracy, epoch, state.total_steps)


def _decision(book: RunData, time: float, event: Decided) -> a.DecisionMade:
    at = max(0.0, time - (book.state.started or 0.0))
    return a.DecisionMade(at, event.step, event.level[:MAX_NAME], event.reason[:MAX_TEXT], event.version)


def _fault(book: RunData, incident: Incident) -> a.FaultSeen:
    at = max(0.0, incident.time - (book.state.started or 0.0))
    kind, detail = incident.kind[:MAX_NAME], incident.detail[:MAX_TEXT]
    return a.FaultSeen(at, incident.rank, incident.step, kind, detail, list(incident.ranks)[:MAX_MEMBERS])


def _series_name(name: str, column: Column) -> a.SeriesName:
    stem, _, rank = name.partition("@")
    return a.SeriesName(name, UNITS[stem], int(rank) if rank else None, column.points)


def _series(book: RunData, name: str, start: float, end: float, width: int) -> a.SeriesView:
    unit = UNITS.get(name.partition("@")[0], "")
    column = book.columns.get(name)
    if column is None:
        return a.SeriesView(name, unit, [], [], [], [])
    window = column.window(start, end, width)
    return a.SeriesView(name, unit, *(values.tolist() for values in (window.at, window.low, window.high, window.mean)))


def _members(book: RunData) -> list[a.MemberView]:
    known = {rank for rank in book.state.ranks if 0 <= rank < MAX_MEMBERS}
    known |= {rank for pair in book.sensed_links for rank in pair}
    return [_member(rank, book.state.ranks.get(rank, RankState())) for rank in sorted(known)]


def _member(rank: int, known: RankState) -> a.MemberView:
    host, site = known.host[:MAX_NAME], known.site[:MAX_NAME]
    return a.MemberView(rank, host, site, *(where(site or host) or (None, None)))


def _plan(at: float, event: Planned) -> a.PlanShown:
    trees = [
        a.TreeShown(tree.root, tree.share, _edges(tree.parents), _reversed(_edges(tree.sources or tree.parents)))
        for tree in event.trees[:MAX_TREES]
    ]
    routes = [a.RouteShown(list(route.path), route.side) for route in event.routes[:MAX_MEMBERS]]
    planner, reason = event.planner[:MAX_NAME], event.reason[:MAX_TEXT]
    return a.PlanShown(at, event.step, event.version, planner, reason, event.predicted, trees, routes)


def _edges(towards: dict[int, int]) -> list[tuple[int, int]]:
    """(member, where it sends), without the root's own."""
    return [(member, parent) for member, parent in sorted(towards.items()) if member != parent]


def _reversed(edges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(to, origin) for origin, to in edges]
