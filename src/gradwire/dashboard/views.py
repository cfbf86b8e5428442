"""Views: a Book in, the answers of the interface out. Pure; whoever calls holds the book's lock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from gradwire.dashboard import answers as a
from gradwire.dashboard.book import MAX_TEXT, UNITS, Book, DecisionKept
from gradwire.dashboard.column import Column
from gradwire.events import Planned, Stepped

# Decisions in one answer: more than a screen can tell apart.
MAX_DECISIONS: Final = 1000
MAX_FAULTS: Final = 500
# The stream of a run that ended without saying so counts as over after this long without an event, in seconds.
SILENCE: Final = 15.0


def overview(book: Book, run: a.RunBrief) -> a.Overview:
    """The first page."""
    split = _split(book)
    plain = book.sensed[1].predicted_plain if book.sensed else None
    recent = [_decision(kept) for kept in list(book.decisions)[-5:]][::-1]
    return a.Overview(
        run=run,
        parameters=max((now.attached.parameters for now in book.ranks.values() if now.attached), default=0),
        steps_per_second=1 / split.seconds if split and split.seconds > 0 else None,
        split=split,
        predicted_plain=plain,
        speedup=plain / split.seconds if plain and split and split.seconds > 0 else None,
        gradient_bytes=sum(now.gradient_bytes for now in book.ranks.values()),
        wire_bytes=sum(now.wire_bytes for now in book.ranks.values()),
        plain_bytes=sum(now.plain_bytes for now in book.ranks.values()),
        network=_network(book),
        decision=recent[0] if recent else None,
        recent=recent,
        note=_note(book),
        seconds_left=_seconds_left(book, run, split),
        faults=book.faults_seen,
    )


def steps(book: Book) -> int:
    """Steps that the furthest rank finished."""
    return max((now.steps for now in book.ranks.values()), default=0)


def catalogue(book: Book) -> a.Catalogue:
    """The names of all series."""
    return a.Catalogue([_series_name(name, column) for name, column in book.columns.items()])


def series_data(book: Book, names: Sequence[str], start: float, end: float, width: int) -> a.SeriesData:
    """Buckets of the series that exist; a name nobody recorded gives an empty series."""
    return a.SeriesData(start, end, [_series(book, name, start, end, width) for name in names])


def decisions(book: Book, start: float, end: float) -> a.Decisions:
    """The newest decisions of a stretch of time, and the one in force when it began."""
    before = [kept for kept in book.decisions if kept.at < start][-1:]
    inside = [kept for kept in book.decisions if start <= kept.at <= end]
    chosen = (before + inside)[-MAX_DECISIONS:]
    left_out = len(before) + len(inside) - len(chosen) + book.decisions_seen - len(book.decisions)
    return a.Decisions([_decision(kept) for kept in chosen], left_out)


def topology(book: Book) -> a.Topology:
    """Members and plans."""
    return a.Topology(_members(book), [_plan(at, event) for at, event in book.plans])


def links(book: Book) -> a.Links:
    """The matrix. Ages count from the end of what was recorded."""
    shown = []
    for (source, destination), (at, link) in sorted(book.links.items()):
        pair = book.pairs.get((source, destination))
        load = pair.load() if pair else None
        shown.append(
            a.LinkNow(
                source,
                destination,
                link.rate,
                link.rtt,
                link.rtprop,
                link.loss,
                link.queueing,
                link.window,
                max(0.0, book.duration - at),
                load,
            )
        )
    return a.Links(_members(book), shown)


def transport(book: Book) -> a.Transport:
    """Totals of gradwire's own transport."""
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
            dict(pair.closes),
        )
        for (source, destination), pair in sorted(book.pairs.items())
    ]
    closes: dict[str, int] = {}
    for pair in pairs:
        for name, count in pair.closes.items():
            closes[name] = closes.get(name, 0) + count
    return a.Transport(
        sum(pair.transfers for pair in pairs),
        sum(pair.nbytes for pair in pairs),
        sum(pair.missing for pair in pairs),
        sum(pair.returned for pair in pairs),
        sum(pair.retransmitted for pair in pairs),
        closes,
        pairs,
    )


def faults(book: Book) -> a.Faults:
    """The newest first."""
    chosen = list(book.faults)[-MAX_FAULTS:][::-1]
    shown = [a.FaultSeen(f.at, f.rank, f.step, f.kind, f.detail, f.peer, f.count) for f in chosen]
    return a.Faults(shown, book.faults_seen - sum(fault.count for fault in chosen))


def configuration(book: Book) -> a.Configuration:
    """What the lowest rank was told, and where others were told something else."""
    attached = {rank: now.attached for rank, now in sorted(book.ranks.items()) if now.attached}
    if not attached:
        return a.Configuration({}, "", "", _members(book), [])
    first_rank, first = next(iter(attached.items()))
    reference = flat(first.config)
    differing = [
        a.RankSetting(rank, name, value)
        for rank, other in attached.items()
        if rank != first_rank
        for name, value in flat(other.config).items()
        if reference.get(name) != value
    ]
    return a.Configuration(first.config, first.gradwire, first.torch, _members(book), differing[:200])


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as dotted names and their text."""
    found: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = str(value)[:MAX_TEXT]
    return found


def _split(book: Book) -> a.StepSplit | None:
    recent: list[Stepped] = [event for now in book.ranks.values() for event in now.recent]
    if not recent:
        return None
    count = len(recent)
    return a.StepSplit(
        *(sum(getattr(event, name) for event in recent) / count for name in a.StepSplit.__struct_fields__)
    )


def _network(book: Book) -> a.NetworkNow | None:
    if book.sensed is None:
        return None
    at, event = book.sensed
    return a.NetworkNow(at, event.bandwidth, event.rtprop, event.queueing, event.loss, event.confidence)


def _note(book: Book) -> a.NoteNow | None:
    if book.noted is None:
        return None
    at, event = book.noted
    return a.NoteNow(at, event.step, event.loss, event.accuracy, event.epoch, book.total_steps)


def _seconds_left(book: Book, run: a.RunBrief, split: a.StepSplit | None) -> float | None:
    if book.total_steps is None or split is None or not run.live:
        return None
    return max(0, book.total_steps - run.steps) * split.seconds


def _decision(kept: DecisionKept) -> a.DecisionMade:
    event = kept.event
    return a.DecisionMade(kept.at, event.step, event.level[:80], event.reason[:MAX_TEXT], event.version, kept.buckets)


def _series_name(name: str, column: Column) -> a.SeriesName:
    stem, _, rank = name.partition("@")
    return a.SeriesName(name, UNITS[stem], int(rank) if rank else None, column.points)


def _series(book: Book, name: str, start: float, end: float, width: int) -> a.Series:
    unit = UNITS.get(name.partition("@")[0], "")
    column = book.columns.get(name)
    if column is None:
        return a.Series(name, unit, [], [], [], [])
    window = column.window(start, end, width)
    return a.Series(name, unit, *(values.tolist() for values in (window.at, window.low, window.high, window.mean)))


def _members(book: Book) -> list[a.Member]:
    known = set(book.ranks) | {rank for pair in book.links for rank in pair}
    attached = {rank: now.attached for rank, now in book.ranks.items()}
    return [
        a.Member(rank, (found.host if found else "")[:80], (found.site if found else "")[:80])
        for rank in sorted(known)
        for found in (attached.get(rank),)
    ]


def _plan(at: float, event: Planned) -> a.PlanShown:
    trees = [
        a.TreeShown(
            tree.root, tree.share, _edges(tree.parents), [(b, c) for c, b in _edges(tree.sources or tree.parents)]
        )
        for tree in event.trees
    ]
    routes = [a.RouteShown(list(route.path), route.side) for route in event.routes]
    reason = event.reason[:MAX_TEXT]
    return a.PlanShown(at, event.step, event.version, event.planner[:80], reason, event.predicted, trees, routes)


def _edges(towards: dict[int, int]) -> list[tuple[int, int]]:
    """(member, where it sends), without the root's own."""
    return [(member, parent) for member, parent in sorted(towards.items()) if member != parent]
