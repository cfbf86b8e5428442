"""Routes: every path of the API with its parameters and its response; the app and the OpenAPI document use them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from starlette.datastructures import QueryParams

from gradwire.dashboard import schema, views
from gradwire.dashboard.library import TrackedRun
from gradwire.errors import ConfigError
from gradwire.observe.outcome import RunOutcome

MAX_WIDTH: Final = 4000
MAX_NAMES: Final = 200
MAX_TIME: Final = 1e9


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter: a number in a range, or (`text`) names that may be repeated unless `single`."""

    name: str
    about: str
    low: float = 0.0
    high: float = MAX_TIME
    whole: bool = False
    text: bool = False
    required: bool = False
    single: bool = False


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """A path under /api/runs/{run}/; `handler` is called with the run's lock held, and with the outcome of the run that
    the query's `with` names, if there is one."""

    name: str
    about: str
    returns: type[schema.Response]
    handler: Callable[[TrackedRun, QueryParams, RunOutcome | None], schema.Response]
    parameters: tuple[Parameter, ...] = ()


START = Parameter("start", "seconds since the run began; default: the beginning")
END = Parameter("end", "seconds since the run began; default: the end")
WIDTH = Parameter("width", "maximum number of intervals, such as a chart's width in pixels", 1, MAX_WIDTH, whole=True)
WITH = Parameter("with", "id of a run to compare with; unknown ids are ignored", text=True, single=True)
NAME = Parameter("name", "name of a series; may be repeated", text=True, required=True)


def number(query: QueryParams, parameter: Parameter, otherwise: float) -> float:
    """A parameter's value; ConfigError if it is not a number or out of range."""
    text = query.get(parameter.name)
    if text is None:
        return otherwise
    try:
        value = float(int(text)) if parameter.whole else float(text)
    except (ValueError, OverflowError):
        kind = "a whole number" if parameter.whole else "a number"
        raise ConfigError(f"{parameter.name}: must be {kind}, but it is {text!r:.60}") from None
    if not parameter.low <= value <= parameter.high:
        raise ConfigError(
            f"{parameter.name}: must be between {parameter.low:g} and {parameter.high:g}, but it is {value:g}"
        )
    return value


def span(run: TrackedRun, query: QueryParams) -> tuple[float, float]:
    """The requested start and end."""
    start = number(query, START, 0.0)
    end = number(query, END, max(run.data.state.elapsed, start))
    if end < start:
        raise ConfigError(f"end: must not be before start ({start:g}), but it is {end:g}")
    return start, max(end, start + 1e-3)


def series(run: TrackedRun, query: QueryParams, base: RunOutcome | None) -> schema.SeriesData:
    names = query.getlist("name")
    if not 1 <= len(names) <= MAX_NAMES:
        raise ConfigError(f"name: between 1 and {MAX_NAMES} series are allowed, not {len(names)}")
    width = int(number(query, WIDTH, 1000))
    return views.series_data(run.data, names, *span(run, query), width)


ROUTES: Final = (
    ApiRoute(
        "overview",
        "The verdict and the main numbers of the run.",
        schema.Overview,
        lambda run, _, base: views.overview(run.data, run.brief(), base),
        (WITH,),
    ),
    ApiRoute(
        "catalogue", "The series that can be requested.", schema.Catalogue, lambda run, *_: views.catalogue(run.data)
    ),
    ApiRoute(
        "series", "Series, reduced to minimum, maximum and mean.", schema.SeriesData, series, (NAME, START, END, WIDTH)
    ),
    ApiRoute(
        "decisions",
        "Decisions with their reasons.",
        schema.Decisions,
        lambda run, query, _: views.decisions(run.data, *span(run, query)),
        (START, END),
    ),
    ApiRoute("topology", "Members and plans.", schema.Topology, lambda run, *_: views.topology(run.data)),
    ApiRoute("links", "Every directed link.", schema.Links, lambda run, *_: views.links(run.data)),
    ApiRoute("transport", "gradwire's own transport.", schema.TransportView, lambda run, *_: views.transport(run.data)),
    ApiRoute(
        "faults",
        "Faults, failures and warnings.",
        schema.Faults,
        lambda run, *_: views.faults(run.data, run.follower.damage),
    ),
    ApiRoute(
        "configuration", "Effective settings.", schema.Configuration, lambda run, *_: views.configuration(run.data)
    ),
)
