"""Runs: one training or one timing each, from settings to a record.

train   a fixed level, once: its losses do not depend on the network. What each step moved is recorded with them.
peer    one of torch's communication hooks, likewise
time    the same steps on a network: the recorded traffic in that network's timeline
whole   a controller on a network, training and time in one loop; also a fixed level, to check the composition
local   a fixed number of local steps at one level, trained and timed like a fixed level; or those of another library
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import statistics
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch

from gradwire.decide.base import Controller
from gradwire.decide.ladder import LADDER
from gradwire.decide.registry import make_controller
from gradwire.level import Level
from gradwire.network import preset
from gradwire.simulate.local_training import simulation_of
from gradwire.simulate.local_workers import LocalWorkers
from gradwire.simulate.lockstep import Movement
from gradwire.simulate.timeline import SimulatedStepTimes, Timeline
from gradwire.simulate.training import SimulatedJob, SimulatedStep, TrainingSimulation
from gradwire.simulate.transfer import NetworkTimes
from gradwire.simulate.workers import BucketTraffic
from gradwire.types import Bucket, TransportKind
from harness.progress.cells import AUTO, AUTO_LOCAL, TRADE
from harness.progress.fingerprint import CONTROL, LOCAL, TIMING, TRAINING, built_in_text, code_of, torch_of
from harness.progress.ledger import Settings
from harness.progress.local_peers import LEVEL as UNCOMPRESSED
from harness.progress.local_peers import PeerSimulation, local_steps_of
from harness.progress.networks import network_of
from harness.progress.packing import rounded
from harness.progress.tasks import task_of
from harness.progress.torch_hooks import HookWorkers, hook_of, work_of

# Steps whose traffic is alike, as JSON: [numel, chunks] of each bucket, level, hops. Of a local step there is one item
# only, whether it ends a round, or that and what the end of the round moved.
Pattern = list[Any]
CODE: Final = {
    "train": TRAINING, "peer": TRAINING, "time": TIMING, "whole": CONTROL, "local": (*TRAINING, *LOCAL),
}  # fmt: skip
# Modules of the benchmark itself that a result depends on.
OWN_CODE: Final = ("tasks.py", "networks.py")
# The share of additional steps that auto may spend where the user allows a trade.
TRADED_STEPS: Final = 1.0
# Of the held-out loss, in the last tenth of a run.
EVALUATIONS: Final = 5
# The rung whose work, scaled, is that of a hook.
CHARGED_AS: Final = next(rung for rung in LADDER if rung.level == Level.parse("lowrank:4"))
# The level of a fixed number of local steps.
LOCAL_LEVEL: Final = "int8"


@dataclass(frozen=True, slots=True)
class Setup:
    """What all runs of a benchmark have in common; the directory is where data are, not what they are."""

    steps: int
    hosts: int = 4
    wire: TransportKind = "group"
    note_loss: bool = False
    directory: Path | None = None

    def settings(self, kind: str, **own: Any) -> Settings:
        common = {"kind": kind, "steps": self.steps, "hosts": self.hosts, "data": self.directory is not None}
        if kind in ("time", "whole"):
            common["wire"] = self.wire
        if kind == "whole":
            common["note_loss"] = self.note_loss
        return common | own


@dataclass(frozen=True, slots=True)
class Work:
    """One run to be done; `given` is a timing's traffic, which its settings know by a hash."""

    settings: Settings
    setup: Setup
    given: dict[str, Any] = field(default_factory=dict)

    @property
    def code(self) -> str:
        kind = self.settings["kind"]
        own = (*OWN_CODE, *self._peer_code)
        shipped = (*CODE[kind], *LOCAL) if self.settings.get("level") == AUTO_LOCAL else CODE[kind]
        trained = "" if kind == "time" else f" torch {torch_of()}"
        if self.settings.get("task") == "gpt" and not self.settings["data"]:
            trained += f" text {built_in_text()}"
        return code_of(shipped) + code_of(own, Path(__file__).parent) + trained

    @property
    def _peer_code(self) -> tuple[str, ...]:
        if self.settings["kind"] == "peer":
            return ("torch_hooks.py",)
        other_library = self.settings["kind"] == "local" and not self.settings["level"].startswith("local:")
        return ("local_peers.py",) if other_library else ()

    def run(self, steps: int | None = None) -> dict[str, Any]:
        """Of a training, only the first `steps`."""
        if self.settings["kind"] in TRAINED:
            return TRAINED[self.settings["kind"]](self, steps or self.setup.steps)
        return {"time": clock, "whole": whole}[self.settings["kind"]](self)


class RecordedTimeline(Timeline):
    """A timeline that keeps what it is asked to time."""

    kept: list[Pattern]

    def step(self, traffic: Sequence[BucketTraffic], level: Level, hops: int) -> SimulatedStepTimes:
        self.kept.append(_pattern(traffic, level, hops))
        return Timeline.step(self, traffic, level, hops)

    def step_alone(self) -> float:
        self.kept.append([False])
        return Timeline.step_alone(self)

    def end_round(self, traffic: Sequence[BucketTraffic], level: Level, hops: int) -> SimulatedStepTimes:
        self.kept[-1] = [True, *_pattern(traffic, level, hops)]
        return Timeline.end_round(self, traffic, level, hops)


def _pattern(traffic: Sequence[BucketTraffic], level: Level, hops: int) -> Pattern:
    moved = [[one.bucket.numel, [[[op.kind, op.nbytes] for op in ops] for ops in one.chunks]] for one in traffic]
    return [moved, str(level), hops]


def train(work: Work, steps: int) -> dict[str, Any]:
    """A fixed level on a network that does not matter."""
    return _recorded(work, _unhindered(work, work.settings["level"]), steps)


def peer(work: Work, steps: int) -> dict[str, Any]:
    """One of torch's hooks in the place of the exchange."""
    simulation = _unhindered(work, "off")
    hook, workers = hook_of(work.settings["level"]), simulation.workers
    simulation.workers = HookWorkers(workers.task, workers.world_size, hook, work.settings["seed"])
    return _recorded(work, simulation, steps)


def local(work: Work, steps: int) -> dict[str, Any]:
    """Local steps, so many a round."""
    peer, every = local_steps_of(work.settings["level"])
    if peer is None:
        return _recorded(work, _unhindered(work, LOCAL_LEVEL, every), steps)
    job = replace(_unhindered_job(work, UNCOMPRESSED, every), outer=peer.outer)
    return _recorded(work, PeerSimulation(job, peer.synchronous_steps(work.setup.steps)), steps)


TRAINED: Final = {"train": train, "peer": peer, "local": local}


def _unhindered(work: Work, level: str, sync_every: int = 0) -> TrainingSimulation:
    return simulation_of(_unhindered_job(work, level, sync_every))


def _unhindered_job(work: Work, level: str, sync_every: int) -> SimulatedJob:
    setup, settings = work.setup, work.settings
    task = task_of(settings["task"], setup.steps, setup.directory)
    job = SimulatedJob(task, preset("lan1g", setup.hosts), level, seed=settings["seed"], sync_every=sync_every)
    return replace(job, evaluate_every=setup.steps + 1)


def _recorded(work: Work, simulation: TrainingSimulation, steps: int) -> dict[str, Any]:
    recorded = RecordedTimeline(simulation.times, simulation.workers.task.compute, random.Random(work.settings["seed"]))
    recorded.kept = []
    simulation.timeline = recorded
    _, result = _trained(simulation, steps)
    return result | {"traffic": runs_of(recorded.kept)}


def whole(work: Work) -> dict[str, Any]:
    setup, settings = work.setup, work.settings
    task = task_of(settings["task"], setup.steps, setup.directory)
    network = network_of(settings["network"], setup.hosts, setup.steps * task.compute, setup.directory)
    level, controller = started(settings["level"])
    job = SimulatedJob(task, network, level, setup.wire, settings["seed"], note_loss=setup.note_loss)
    if settings["level"] == AUTO_LOCAL:
        job = replace(job, sync_every="auto")
    simulation = simulation_of(replace(job, evaluate_every=setup.steps + 1), controller)
    steps, result = _trained(simulation, setup.steps)
    shown = [named(step) for step in steps]
    levels = runs_of(shown)
    reasons = [[step.step, step.reason] for (b, a), step in zip(pairwise(shown), steps[1:], strict=True) if a != b]
    return result | {
        "seconds": rounded("seconds", [step.seconds for step in steps]),
        "levels": levels,
        "guarded": sum(step.guarded for step in steps),
        "believed": steps[-1].bandwidth,
        "reasons": reasons[:40],
    }


def started(contestant: str) -> tuple[str, Controller | None]:
    """The level of the job, and its controller where the level's name does not say all of it."""
    if contestant == AUTO_LOCAL:
        return AUTO, None
    if contestant == TRADE:
        return AUTO, make_controller(AUTO, extra_steps=TRADED_STEPS)
    return contestant, None


def named(step: SimulatedStep) -> str:
    """The level of a step, with its local steps where it has any."""
    return f"{step.level} every {step.sync_every}" if step.sync_every > 1 else str(step.level)


def clock(work: Work) -> dict[str, Any]:
    """When each recorded step ends on the network."""
    setup, settings = work.setup, work.settings
    network = network_of(settings["network"], setup.hosts, setup.steps * settings["compute"], setup.directory)
    times = NetworkTimes(network, setup.wire, seed=settings["seed"])
    timeline = Timeline(times, settings["compute"], random.Random(settings["seed"]))
    patterns = _charged(timeline, list(each_of(work.given)), *settings.get("work", ()))
    return {"seconds": rounded("seconds", [_timed(timeline, pattern) for pattern in patterns])}


def _charged(timeline: Timeline, patterns: list[Pattern], work: float = 0.0, free: int = 0) -> list[Pattern]:
    """Steps of a hook that computes so many nanoseconds per element, after the first `free`: as steps of a rung whose
    work is scaled to that."""
    if not work:
        return patterns
    timeline.work_scale = work / CHARGED_AS.work
    as_rung = [[moved, str(CHARGED_AS.level), hops] for moved, _, hops in patterns[free:]]
    return patterns[:free] + as_rung


def _timed(timeline: Timeline, pattern: Pattern) -> float:
    """When a recorded step ends."""
    alone = isinstance(pattern[0], bool)
    ended = timeline.step_alone() if alone else 0.0
    if pattern == [False]:
        return ended
    moved, level, hops = pattern[-3:]
    traffic = [_traffic(index, one) for index, one in enumerate(moved)]
    run = timeline.end_round if alone else timeline.step
    return run(traffic, Level.parse(level), hops).end


def _traffic(index: int, moved: Any) -> BucketTraffic:
    numel, chunks = moved
    bucket = Bucket(index, 0, numel, 4, (), False)
    return BucketTraffic(bucket, tuple(tuple(Movement(kind, nbytes) for kind, nbytes in ops) for ops in chunks))


def _steps(simulation: TrainingSimulation, steps: int) -> Iterator[SimulatedStep]:
    """Steps until their number, or until the loss is not finite: nothing can be learnt after that."""
    for step in simulation:
        yield step
        if step.step >= steps or not math.isfinite(step.loss):
            return


def _trained(simulation: TrainingSimulation, number: int) -> tuple[list[SimulatedStep], dict[str, Any]]:
    """All steps, and what they reached: the loss on held-out data and the accuracy are means over some of the last
    steps, because at a constant learning rate the weights of a single one vary more than levels differ."""
    steps, ends = [], []
    for step in _steps(simulation, number):
        steps.append(step)
        if step.step in evaluated(number):
            ends.append(_held_out(simulation))
    loss, accuracy = map(statistics.fmean, zip(*(ends or [_held_out(simulation)]), strict=True))
    return steps, {"losses": rounded("losses", [step.loss for step in steps]), "held_out": loss, "accuracy": accuracy}


def evaluated(number: int) -> list[int]:
    """The last step, and some evenly in the last tenth before it."""
    apart = max(1, number // 10 // EVALUATIONS)
    return [number - apart * index for index in range(EVALUATIONS)]


def _held_out(simulation: TrainingSimulation) -> tuple[float, float]:
    """The loss on held-out data, and the share of labels (of a text: of next characters) that get the highest score."""
    workers = simulation.workers
    model, (inputs, labels) = workers.model, workers.task.held_out
    shared = workers.global_weights() if isinstance(workers, LocalWorkers) else nullcontext()
    model.eval()
    with torch.no_grad(), shared:
        scores = model(inputs)
        loss = workers.task.loss(lambda _: scores, inputs, labels)  # type: ignore[arg-type]
    model.train()
    right = scores.reshape(-1, scores.shape[-1]).argmax(-1) == labels.reshape(-1)
    return float(loss), float(right.float().mean())


def runs_of(items: Sequence[Any]) -> dict[str, Any]:
    """Run-length coding: the different items, and [index, count] in order."""
    kinds: list[Any] = []
    places: dict[str, int] = {}
    order: list[list[int]] = []
    for item in items:
        text = json.dumps(item)
        place = places.setdefault(text, len(kinds))
        if place == len(kinds):
            kinds.append(item)
        if order and order[-1][0] == place:
            order[-1][1] += 1
        else:
            order.append([place, 1])
    return {"kinds": kinds, "order": order}


def each_of(coded: dict[str, Any]) -> Iterator[Any]:
    for place, count in coded["order"]:
        for _ in range(count):
            yield coded["kinds"][place]


def timing(setup: Setup, task: str, network: str, seed: int, trained: dict[str, Any]) -> Work:
    """The timing of a trained level. Levels whose steps move the same have the same times."""
    compute = task_of(task, setup.steps, setup.directory).compute
    traffic = trained["traffic"]
    moved = hashlib.sha256(json.dumps(traffic).encode()).hexdigest()[:16]
    settings = setup.settings("time", network=network, seed=seed, compute=compute, traffic=moved)
    if trained.get("settings", {}).get("kind") == "peer":
        settings["work"] = list(work_of(trained["settings"]["level"]))
    return Work(settings, setup, traffic)


def setup_of(setup: Setup) -> dict[str, Any]:
    return {name: value for name, value in asdict(setup).items() if name != "directory"}
