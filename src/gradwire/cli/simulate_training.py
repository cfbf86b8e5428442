"""`gradwire simulate --train`: trains a small model for real on a simulated network, and shows loss against seconds."""

from __future__ import annotations

import json
import statistics
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import click
from rich.console import Console
from rich.table import Table

from gradwire.config import AUTO_PLAN, Config
from gradwire.decide.registry import is_controller
from gradwire.errors import ConfigError
from gradwire.level import Level
from gradwire.network import Network, load_network
from gradwire.network.presets import PRESETS, preset
from gradwire.plan.planners.registry import PLANNERS
from gradwire.simulate.local_training import simulation_of
from gradwire.simulate.tasks import TrainingTask, make_task, with_optimizer
from gradwire.simulate.training import SimulatedJob, SimulatedStep, TrainingSimulation
from gradwire.simulate.transports import AUTO_TRANSPORT, ChosenTransport
from gradwire.types import FLAT_TRANSPORTS
from gradwire.units import Rate, Seconds, parse_seconds

# Lines of progress per run.
LINES: Final = 10
# Steps at the end of a run whose median is the time of a step when all is decided.
LAST: Final = 20
# What `--plan` says for no plan.
FLAT_PLAN: Final = "flat"


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """The command's options, as given."""

    train: str
    net: str
    level: str
    transport: str
    optimizer: str | None
    hosts: int
    steps: int
    seconds: float | None
    compute: str | None
    seed: int
    data: str | None
    as_json: bool
    sync_every: str | None = None
    plan: str = "flat"


@dataclass(frozen=True, slots=True)
class TrainingSummary:
    """How one run ended."""

    level: str
    steps: int
    seconds: float
    loss: float
    last_level: str
    changes: int
    bandwidth: float | None
    guarded: int
    sync_every: int
    transport: str
    typical: float


def run_training(options: TrainOptions) -> None:
    """Train once for each level, and print progress and a comparison."""
    task, network = _task(options), _network(options)
    levels = [text.strip() for text in options.level.split(",")]
    for text in levels:
        if not is_controller(text):
            Level.parse(text, setting="level")
    if options.steps < 1:
        raise ConfigError(f"steps: must be 1 or more, but it is {options.steps}")
    console = Console(quiet=options.as_json)
    summaries = []
    for text in levels:
        job = SimulatedJob(
            task, network, text, _wire(options.transport), options.seed, _compute(options),
            warmup=Config(level=text, plan=_plan(options), sync_every=_sync_every(options)).warmup,
            sync_every=_sync_every(options), plan=_plan(options),
        )  # fmt: skip
        if len(levels) > 1:
            console.print(f"[bold]{text}[/bold]")
        summaries.append(_train(job, options, console))
    if options.as_json:
        click.echo(json.dumps([_row(one) for one in summaries]))
        return
    console.print(_table(task, network, summaries))


def _train(job: SimulatedJob, options: TrainOptions, console: Console) -> TrainingSummary:
    simulation = simulation_of(job)
    last, changes, guarded, held_out = None, 0, 0, float("nan")
    step: SimulatedStep | None = None
    took: deque[float] = deque(maxlen=LAST)
    ended, shown = 0.0, 0
    for step in _bounded(simulation, options):
        took.append(step.seconds - ended)
        ended = step.seconds
        for chosen in simulation.transports.reasons[shown:]:
            console.print(f"  {step.step:5d}  {chosen.reason}", style="cyan")
        shown = len(simulation.transports.reasons)
        if last is not None and step.level != last:
            changes += 1
        if step.guarded:
            guarded += 1
            console.print(f"  {step.step:5d}  [red]{step.reason}[/red]")
        last = step.level
        if step.held_out is not None:
            held_out = step.held_out
        if step.step % max(1, options.steps // LINES) == 0:
            every = f" every {step.sync_every:<3d}" if job.sync_every else ""
            when = f"{step.step:5d}  {Seconds(step.seconds)}"
            console.print(f"  {when}  {step.level!s:18}{every} loss {step.loss:.3f}  {step.reason}")
    assert step is not None
    if step.held_out is None:
        held_out = simulation.workers.held_out_loss()
    return TrainingSummary(
        job.level, step.step, step.seconds, held_out, str(step.level), changes, step.bandwidth, guarded,
        step.sync_every, step.transport, statistics.median(took),
    )  # fmt: skip


def _bounded(simulation: TrainingSimulation, options: TrainOptions) -> Iterator[SimulatedStep]:
    for step in simulation:
        yield step
        if step.step >= options.steps or (options.seconds is not None and step.seconds >= options.seconds):
            return


def _task(options: TrainOptions) -> TrainingTask:
    directory = Path(options.data) if options.data else None
    if directory is not None and not directory.is_dir():
        raise ConfigError(f"data: {directory} is not a directory")
    task = make_task(options.train, directory)
    return with_optimizer(task, options.optimizer) if options.optimizer else task


def _network(options: TrainOptions) -> Network:
    if options.net in PRESETS:
        return preset(options.net, None if PRESETS[options.net].fixed else options.hosts)
    if Path(options.net).suffix == ".toml":
        return load_network(options.net)
    raise ConfigError(f"net: {options.net!r} has no links; with --train use a preset or a TOML file of the lab")


def _wire(text: str) -> ChosenTransport:
    if text == AUTO_TRANSPORT:
        return AUTO_TRANSPORT
    for known in FLAT_TRANSPORTS:
        if text == known:
            return known
    raise ConfigError(f"transport: {text!r} cannot be simulated; choose one of {', '.join(FLAT_TRANSPORTS)}, auto")


def _plan(options: TrainOptions) -> str:
    """The setting `plan`."""
    if options.plan == FLAT_PLAN:
        return ""
    if options.plan not in (*PLANNERS, AUTO_PLAN):
        known = ", ".join((FLAT_PLAN, AUTO_PLAN, *PLANNERS))
        raise ConfigError(f"plan: {options.plan!r} cannot be simulated; choose one of {known}")
    if options.sync_every is not None:
        raise ConfigError("plan: trees are simulated for synchronous training only; leave out --sync-every or --plan")
    return options.plan


def _sync_every(options: TrainOptions) -> int | Literal["auto"]:
    text = options.sync_every
    if text is None:
        return 0
    if text == "auto":
        return "auto"
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"sync-every: {text!r} is not valid; write a whole number >= 1 of steps, or auto")
    return int(text)


def _compute(options: TrainOptions) -> float | None:
    return None if options.compute is None else float(parse_seconds(options.compute, "compute"))


def _row(one: TrainingSummary) -> dict[str, Any]:
    return {name: getattr(one, name) for name in TrainingSummary.__dataclass_fields__}


def _table(task: TrainingTask, network: Network, summaries: list[TrainingSummary]) -> Table:
    table = Table(
        title=f"{task.name} on {network.name}, {len(network.ranks)} workers, virtual time; loss on held-out data"
    )
    left = ("level", "at the end", "over")
    for column in ("level", "every", "steps", "seconds", "a step", "last", "loss", *left[1:], "changes", "believed"):
        table.add_column(column, justify="left" if column in left else "right")
    for one in summaries:
        believed = "-" if one.bandwidth is None else str(Rate(one.bandwidth))
        each = str(Seconds(one.seconds / one.steps))
        table.add_row(
            one.level, str(one.sync_every), str(one.steps), f"{one.seconds:.1f}", each, str(Seconds(one.typical)),
            f"{one.loss:.3f}", one.last_level, one.transport, str(one.changes), believed,
        )  # fmt: skip
    return table
