"""Routes: every address of the interface, its parameters and its answer; the app and the OpenAPI document follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from starlette.datastructures import QueryParams

from gradwire.dashboard import answers as a
from gradwire.dashboard import views
from gradwire.dashboard.library import TrackedRun
from gradwire.errors import ConfigError

MAX_WIDTH: Final = 4000
MAX_NAMES: Final = 200
MAX_TIME: Final = 1e9


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter: a number in a range, or (`text`) names that may be repeated."""

    name: str
    about: str
    low: float = 0.0
    high: float = MAX_TIME
    whole: bool = False
    text: bool = False
    required: bool = False


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """An address under /api/runs/{run}/; `answer` is called with the run's lock held."""

    name: str
    about: str
    returns: type[a.Response]
    answer: Callable[[TrackedRun, QueryParams], a.Response]
    parameters: tuple[Parameter, ...] = ()


START = Parameter("start", "seconds since the run began; the beginning unless given")
END = Parameter("end", "seconds since the run began; the end unless given")
WIDTH = Parameter("width", "buckets at most, such as a chart's pixels", 1, MAX_WIDTH, whole=True)
NAME = Parameter("name", "a series' name; may be repeated", text=True, required=True)


def number(query: QueryParams, parameter: Parameter, otherwise: float) -> float:
    """A parameter's value; ConfigError names it when it is none or out of range."""
    text = query.get(parameter.name)
    if text is None:
        return otherwise
    try:
        value = float(int(text)) if parameter.whole else float(text)
    except (ValueError, OverflowError):
        raise ConfigError(f"{parameter.name}: a number is wanted") from None
    if not parameter.low <= value <= parameter.high:
        raise ConfigError(f"{parameter.name}: between {parameter.low:g} and {parameter.high:g}")
    return value


def span(run: TrackedRun, query: QueryParams) -> tuple[float, float]:
    """The stretch of time asked for."""
    start = number(query, START, 0.0)
    end = number(query, END, max(run.book.state.elapsed, start))
    if end < start:
        raise ConfigError("end: not before start")
    return start, max(end, start + 1e-3)


def series(run: TrackedRun, query: QueryParams) -> a.SeriesData:
    names = query.getlist("name")
    if not 1 <= len(names) <= MAX_NAMES:
        raise ConfigError(f"name: between 1 and {MAX_NAMES} series")
    width = int(number(query, WIDTH, 1000))
    return views.series_data(run.book, names, *span(run, query), width)


ROUTES: Final = (
    ApiRoute("overview", "The run at a glance.", a.Overview, lambda run, _: views.overview(run.book, run.brief())),
    ApiRoute("catalogue", "The series that can be asked for.", a.Catalogue, lambda run, _: views.catalogue(run.book)),
    ApiRoute("series", "Series, reduced to lowest, highest and mean.", a.SeriesData, series, (NAME, START, END, WIDTH)),
    ApiRoute(
        "decisions",
        "Decisions with their reasons.",
        a.Decisions,
        lambda run, query: views.decisions(run.book, *span(run, query)),
        (START, END),
    ),
    ApiRoute("topology", "Members and plans.", a.Topology, lambda run, _: views.topology(run.book)),
    ApiRoute("links", "Every directed link.", a.Links, lambda run, _: views.links(run.book)),
    ApiRoute("transport", "gradwire's own transport.", a.TransportView, lambda run, _: views.transport(run.book)),
    ApiRoute("faults", "What went wrong.", a.Faults, lambda run, _: views.faults(run.book, run.follower.damage)),
    ApiRoute("configuration", "What was set.", a.Configuration, lambda run, _: views.configuration(run.book)),
)
