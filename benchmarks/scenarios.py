"""Scenarios: `attach(model)` with nothing set, against every combination of transport, routes and level set by hand.

    python benchmarks/scenarios.py [--scenarios two-offices,lan] [--task mlp] [--steps 300] [--write] [--again]

Virtual time (gradwire.simulate): real gradients, codecs and decisions, a simulated network and clock. The figure is the
seconds to a loss: the one that uncompressed training has after three fifths of the steps, by the mean of some steps. A
fixed level's losses do not depend on what carries it, so each is trained once for a number of ranks, and timed over
every transport and along every planner's trees. What was run is kept in docs/results/scenarios.json with --write, and
not run again unless --again is given; the page is written from that file.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch

from gradwire.config import Config
from gradwire.decide.auto import EXTRA_STEPS
from gradwire.decide.fixed import Fixed
from gradwire.decide.registry import make_controller
from gradwire.level import Level
from gradwire.network import Network, preset
from gradwire.network.link_spec import LinkSpec
from gradwire.network.network import SWITCH, Change, as_hosts, host_names, matrix, star
from gradwire.simulate.tasks import TrainingTask, make_task
from gradwire.simulate.timeline import Timeline
from gradwire.simulate.training import SimulatedJob, TrainingSimulation
from gradwire.simulate.transports import SimulatedTransports
from gradwire.simulate.workers import BucketTraffic, Workers
from gradwire.types import TransportKind
from gradwire.units import Bytes, Rate, Seconds
from harness.facts import machine_facts

RESULTS: Final = Path(__file__).parents[1] / "docs" / "results"
FLAT_LEVELS: Final = ("off", "int8", "int4", "lowrank:32+int4", "lowrank:4", "topk:0.1+int8", "topk:0.01+int8")
TREE_LEVELS: Final = ("off", "int8", "int4", "sharedk:0.1+int8", "sharedk:0.01+int8")
WIRES: Final[tuple[TransportKind, ...]] = ("group", "tcp", "ltp")
PLANNERS: Final = ("loadaware", "sites")
# The task is a tenth of the model that networks are tried with in the lab, and so are the rates: bytes take as long.
SLOWER: Final = 10.0
# Steps over whose losses is averaged, and the share of the steps after which uncompressed training has the target.
MEAN: Final = 20
TARGET_AT: Final = 0.6
# What `attach(model)` does, the same without trees, and where the user allows as many steps again.
AUTO: Final = {"auto": ("auto", EXTRA_STEPS), "auto, flat": ("", EXTRA_STEPS), "auto, trade": ("auto", 1.0)}
# `auto` keeps to levels that cost next to no steps: it is compared with combinations that need at most so many times
# the steps of uncompressed training (int4 needs 1.22 times as many for one of the seeds); with a trade, with all.
SAME_STEPS: Final = 1.25
GOAL: Final = 0.95
# Why a scenario is lost, examined when it was; the page shows those that are.
CAUSES: Final = {
    "nine-sites": "LTP carries gradients from step 14 on, and until then a step takes nearly twice as long; when steps "
    "became longer at step 137, because the network had changed, the group was measured again for 12 steps",
    "two-offices": "the first 13 steps go between all ranks, at 1.4 to 2 times the time: links are seen, trees are "
    "opened and measured; and they use TCP, which takes 3 % longer there than LTP",
    "four-regions": "the first 13 steps go between all ranks, each at six to nine times the time of one along trees; "
    "those that follow take as long as the best by hand. It is the price of not being told the network, and the same "
    "13 steps in a job of any length",
    "lan": "the group is kept, as it must be on a local network, where LTP would save 8 % of a step; and int4 is kept, "
    "because low rank 32 would save only 5 % of one",
    "asymmetric": "the first 13 steps go between all ranks, at about three times the time",
}
# The same for a trade.
TRADE_CAUSES: Final = (
    "With a trade it is the price of int2 on this task, a constant 1.2: its steps are the shortest, but jobs that use "
    "it, and topk:0.3+int4 after it, need 225 to 290 steps, and on the campus more than 300, where int4 needs 192 to "
    "212. On the asymmetric network it also makes the flat exchange look as short as trees, which are then not tried"
)


def nine_sites() -> Network:
    """NetStorm's cables at half their rates, new random ones every 20 s, 1 % loss on each: the scenario of whole.py."""
    network, rng = preset("netstorm9"), random.Random(9)

    def draw() -> Rate:
        return Rate.from_mbit(rng.uniform(10, 77.5))

    links = tuple(replace(one, spec=replace(one.spec, rate=draw(), loss=0.01)) for one in network.links)
    changes = tuple(Change(Seconds(20.0 * turn), link.name, draw()) for turn in range(1, 60) for link in links)
    return replace(network, links=links, changes=changes)


def bufferbloat() -> Network:
    """20 Mbit/s behind queues of two seconds."""
    hosts, spec = as_hosts(host_names(4)), LinkSpec(Rate.from_mbit(20), Seconds(0.01), queue=Bytes(5_000_000))
    return Network("bufferbloat", hosts, star(hosts, lambda _: (spec, spec)), (SWITCH,))


def asymmetric() -> Network:
    """Four sites; one way around them is fast and near, the other one is slow and far."""
    hosts = as_hosts([f"s{index}" for index in range(4)])
    there, back = (LinkSpec(Rate.from_mbit(rate), Seconds(delay)) for rate, delay in ((100, 0.01), (10, 0.04)))
    links = matrix([host.name for host in hosts], lambda i, j: there if (j - i) % 4 in (1, 2) else back)
    return Network("asymmetric", hosts, links)


# Scenarios with ranks that are near each other, where sites can sum first.
SITED: Final = ("two-offices", "campus-wifi")

SCENARIOS: Final[dict[str, tuple[str, Callable[[], Network]]]] = {
    "nine-sites": ("nine sites, changing links, 1 % loss", nine_sites),
    "two-offices": ("two offices, 20 down and 2 Mbit/s up", lambda: preset("two-offices")),
    "campus-wifi": ("a campus, one rank on Wi-Fi", lambda: preset("campus-wifi")),
    "four-regions": ("four regions with one bad link", lambda: preset("four-regions")),
    "lan": ("eight equal hosts on Gigabit Ethernet", lambda: preset("lan1g", 8)),
    "bufferbloat": ("20 Mbit/s behind queues of 2 s", bufferbloat),
    "asymmetric": ("routes that differ by direction", asymmetric),
}


def slower(network: Network) -> Network:
    """At a tenth of its rates, changes included."""
    links = (replace(one, spec=replace(one.spec, rate=Rate(one.spec.rate / SLOWER))) for one in network.links)
    changes = (replace(one, rate=Rate(one.rate / SLOWER)) if one.rate else one for one in network.changes)
    return replace(network, links=tuple(links), changes=tuple(changes))


@dataclass(frozen=True, slots=True)
class Trained:
    """A fixed level's steps: their levels, losses, and what they move."""

    levels: list[Level]
    losses: list[float]
    traffic: list[tuple[BucketTraffic, ...]]


@cache
def task_of(name: str) -> TrainingTask:
    return make_task(name)


@cache
def trained(task: str, world: int, level: str, steps: int) -> Trained:
    workers = Workers(task_of(task), world)
    fixed, found = Fixed(Level.parse(level), world, Config(level=level).warmup), Trained([], [], [])
    for number in range(1, steps + 1):
        used = fixed.at(number).level
        step = workers.train(used)
        found.levels.append(used)
        found.losses.append(step.loss)
        found.traffic.append(step.traffic)
    return found


def means(losses: list[float]) -> list[float]:
    """The least mean of MEAN losses so far, by step."""
    found: list[float] = []
    for end in range(1, len(losses) + 1):
        window = losses[max(0, end - MEAN) : end]
        mean = sum(window) / len(window) if end >= MEAN else float("inf")
        found.append(min(mean, found[-1]) if found else mean)
    return found


def reached(losses: list[float], ends: list[float], target: float) -> tuple[int, float] | None:
    """The step, and the second, at which the mean loss is that of the target."""
    return next(((at + 1, ends[at]) for at, mean in enumerate(means(losses)) if mean <= target), None)


@dataclass(frozen=True, slots=True)
class Run:
    """One scenario's settings."""

    name: str
    task: str
    steps: int

    @property
    def network(self) -> Network:
        return slower(SCENARIOS[self.name][1]())

    @property
    def world(self) -> int:
        return len(self.network.ranks)

    @property
    def target(self) -> float:
        return means(trained(self.task, self.world, "off", self.steps).losses)[round(TARGET_AT * self.steps) - 1]

    def combinations(self) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
        for name, (plan, extra) in AUTO.items():
            yield name, lambda plan=plan, extra=extra: self.automatic(plan, extra)  # type: ignore[misc]
        for wire in WIRES:
            for level in FLAT_LEVELS:
                yield f"{wire} {level}", lambda wire=wire, level=level: self.fixed(wire, "", level)  # type: ignore[misc]
        for planner in PLANNERS[: 2 if self.name in SITED else 1]:
            for wire in WIRES[1:]:
                for level in TREE_LEVELS:
                    yield (
                        f"{planner} over {wire} {level}",
                        lambda p=planner, wire=wire, level=level: self.fixed(  # type: ignore[misc]
                            wire, p, level
                        ),
                    )

    def fixed(self, wire: TransportKind, plan: str, level: str) -> dict[str, Any]:
        done = trained(self.task, self.world, level, self.steps)
        carried = SimulatedTransports(wire, self.network, 1, plan).current
        timeline, ends = Timeline(carried.times, task_of(self.task).compute, random.Random(1)), []
        for used, traffic in zip(done.levels, done.traffic, strict=True):
            ends.append(timeline.step(carried.traffic(traffic, used), used, 1).end)
        return self._result(done.losses, ends)

    def automatic(self, plan: str, extra_steps: float) -> dict[str, Any]:
        job = SimulatedJob(task_of(self.task), self.network, "auto", "auto", evaluate_every=self.steps + 1, plan=plan)
        simulation = TrainingSimulation(job, make_controller("auto", extra_steps=extra_steps))
        steps = [simulation.step() for _ in range(self.steps)]
        used = [f"{one.transport} {one.level}" for one in steps]
        changes = [[at + 1, one] for at, one in enumerate(used) if not at or used[at - 1] != one]
        reasons = [[one.step, one.reason] for one in simulation.transports.reasons]
        result = self._result([one.loss for one in steps], [one.seconds for one in steps])
        return result | {"used": changes, "reasons": reasons}

    def _result(self, losses: list[float], ends: list[float]) -> dict[str, Any]:
        found = reached(losses, ends, self.target)
        step, seconds = found or (None, None)
        apart = sorted(after - before for before, after in zip(ends[-41:-1], ends[-40:], strict=True))
        return {"step": step, "seconds": seconds, "typical": apart[len(apart) // 2]}


def page(known: dict[str, Any]) -> str:
    lines = [
        "# Nothing set, against every combination set by hand",
        "",
        "`python benchmarks/scenarios.py --write`: virtual time, so figures are exact for the model of the network and",
        "repeat to the digit. Seconds to the loss that uncompressed training has after three fifths of its steps (mean",
        f"of {MEAN} steps, one seed). By hand, fixed from the first step on: {len(WIRES)} transports",
        f"x {len(FLAT_LEVELS)} levels, and `loadaware` (where ranks are near each other, also `sites`) x 2 wires",
        f"x {len(TREE_LEVELS)} levels. The model is a tenth of the one that networks are tried with in the lab, and so",
        "are the rates: bytes take as long.",
        "",
        "`auto` is `attach(model)` with nothing set, `flat` the same without trees. It uses levels that cost next to",
        f"no steps, so it is compared with the best combination that needs at most {SAME_STEPS} times the steps of",
        "uncompressed training. `trade` is `attach(model, extra_steps=1)`, and compared with the best of all.",
        f"The target is {GOAL}x in each; what is below is **bold**.",
        "",
        "| scenario | task, steps | auto s | flat s | best by hand s | | auto is | ends with |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [_row(key, cell, "auto", SAME_STEPS) for key, cell in known.items()]
    lines += ["", "With a trade of steps for time:", ""]
    lines += [
        "| scenario | task, steps | trade s | best by hand s | | trade is | ends with |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [_row(key, cell, "auto, trade", float("inf")) for key, cell in known.items()]
    lost = [name for name in CAUSES if any(name == key.split("/")[0] and _lost(cell) for key, cell in known.items())]
    lines += ["", "What is lost by `auto`, and why:", ""] if lost else []
    lines += [f"* {SCENARIOS[name][0]}: {CAUSES[name]}." for name in lost]
    traded = any(ratio_of(cell, "auto, trade", float("inf")) < GOAL for cell in known.values())
    lines += ["", f"{TRADE_CAUSES}."] if traded else []
    missing = [about for name, (about, _) in SCENARIOS.items() if name not in {key.split("/")[0] for key in known}]
    lines += ["", f"Not in this table yet: {'; '.join(missing)}."] if missing else []
    return "\n".join(lines) + "\n"


def _lost(cell: dict[str, Any]) -> bool:
    return ratio_of(cell, "auto", SAME_STEPS) < GOAL


def _row(key: str, cell: dict[str, Any], name: str, most: float) -> str:
    scenario, task, steps = key.split("/")
    best, found = best_of(cell, most)
    own, ratio = cell[name], ratio_of(cell, name, most)
    flat = [_seconds(cell["auto, flat"])] if name == "auto" else []
    shown = f"{ratio:.2f}x" if ratio >= GOAL else f"**{ratio:.2f}x**"
    tried = sum(one not in AUTO for one in cell)
    by_hand = f"{best}, {found['step']} steps (of {tried} tried)"
    ends = f"{own['used'][-1][1]}, {own['step'] or f'more than {steps}'} steps"
    cells = (SCENARIOS[scenario][0], f"{task}, {steps}", _seconds(own), *flat, _seconds(found), by_hand, shown, ends)
    return "| " + " | ".join(cells) + " |"


def _seconds(one: dict[str, Any]) -> str:
    return f"{one['seconds']:.1f}" if one["seconds"] else "-"


def best_of(cell: dict[str, Any], most: float) -> tuple[str, dict[str, Any]]:
    """The quickest combination of those that need at most so many times the steps of uncompressed training."""
    steps = most * cell["group off"]["step"]
    by_hand = {name: one for name, one in cell.items() if name not in AUTO and one["step"] and one["step"] <= steps}
    best = min(by_hand, key=lambda name: by_hand[name]["seconds"])
    return best, by_hand[best]


def ratio_of(cell: dict[str, Any], name: str, most: float) -> float:
    return best_of(cell, most)[1]["seconds"] / cell[name]["seconds"] if cell[name]["seconds"] else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scenarios", default=",".join(SCENARIOS))
    parser.add_argument("--task", default="mlp")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--write", action="store_true", help="keep in docs/results, and write the page")
    parser.add_argument("--out", type=Path, default=RESULTS / "scenarios.json")
    parser.add_argument("--again", default="", help="combinations to run again: auto, or all")
    parser.add_argument("--only", default="", help="combinations whose name matches this expression")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which no further one begins")
    options = parser.parse_args()
    torch.set_num_threads(1)
    known: dict[str, Any] = json.loads(options.out.read_text()) if options.out.is_file() else {}
    began = time.monotonic()
    for name in options.scenarios.split(","):
        run = Run(name, options.task, options.steps)
        cell = known.setdefault(f"{name}/{options.task}/{options.steps}", {})
        for combination, perform in run.combinations():
            again = options.again == "all" or (options.again == "auto" and combination in AUTO)
            if not re.search(options.only, combination):
                continue
            if (combination in cell and not again) or time.monotonic() > began + options.budget:
                continue
            cell[combination] = perform()
            print(name, combination, {k: v for k, v in cell[combination].items() if k != "reasons"}, flush=True)
            options.out.write_text(json.dumps(known, indent=1) + "\n")
        if len(cell) > len(AUTO) and all(one in cell for one in AUTO):
            ratios = (ratio_of(cell, "auto", SAME_STEPS), ratio_of(cell, "auto, trade", float("inf")))
            print(f"== {name}: auto {ratios[0]:.2f}x, with a trade {ratios[1]:.2f}x")
    if options.write:
        facts = machine_facts()
        whole = {
            key: cell for key, cell in known.items() if all(one in cell for one in (*AUTO, "group off", "ltp int4"))
        }
        (RESULTS / "scenarios.md").write_text(page(whole) + f"\ngradwire {facts['revision'][:10]}\n")


if __name__ == "__main__":
    main()
