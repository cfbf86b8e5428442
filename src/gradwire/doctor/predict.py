"""Predict: the step time at each level on the measured network, and a recommendation in a few sentences. Pure.

Model: step = compute + max(0, communication - hidden); communication = bytes / slowest path + round trips + encoding.
Over the process group every phase of an exchange takes a round trip, over a wire of gradwire's own one way. What a
level costs in steps is `auto`'s assumption before it has seen a gradient (decide/price.py), and the level recommended
is the one that `auto` would use: the least lossy within a few per cent of the best time to accuracy, among those that
cost next to no steps.
`hidden` is what DDP overlaps: nine tenths of backward, which is two thirds of compute. Each host is assumed to have one
link that all its transfers share. (`decide/cost_model.py` needs a measured step and its buckets; here there is none.)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gradwire.compress.build import build_codec
from gradwire.decide.auto import EXTRA_STEPS
from gradwire.decide.bucket_advice import MEGABYTE, advise
from gradwire.decide.price import PriceList
from gradwire.doctor.types import Finding, LevelPrediction
from gradwire.errors import ConfigError
from gradwire.level import Level
from gradwire.types import all_reduce_bytes
from gradwire.units import Bytes, Rate, Seconds

# Least lossy first: among levels that are about as fast, the first one is recommended.
LADDER = ("off", "fp16", "int8", "int4", "topk:0.1+int8", "topk:0.01+int8")
# A less lossy level is recommended if its step takes at most this many times the fastest.
AS_FAST = 1.1
# A gain of another transport, or of a lossier level, that is worth a sentence.
WORTH = 1.1
HIDDEN = 0.9 * 2 / 3
# Parameters and milliseconds of compute (forward and backward, batch of 32 to 128) on a V100-class GPU: assumptions.
MODELS: dict[str, tuple[int, float]] = {
    "resnet18": (11_174_000, 75.0),
    "resnet50": (25_557_000, 190.0),
    "vgg16": (138_358_000, 250.0),
    "gpt2": (124_440_000, 300.0),
}
DEFAULT_COMPUTE_MS = 100.0


@dataclass(frozen=True, slots=True)
class Workload:
    """A model's parameters and the seconds of compute in a step."""

    model: str
    parameters: int
    compute: Seconds


@dataclass(frozen=True, slots=True)
class NetworkPath:
    """The slowest measured path: payload bytes per second, and the longest round trip."""

    rate: Rate
    rtt: Seconds


def parse_model(text: str, compute_ms: float | None = None) -> Workload:
    """A known model or millions of parameters: "resnet18", "350M"."""
    known = MODELS.get(text.lower())
    if known is None:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)[mM]", text)
        if match is None or float(match[1]) <= 0:
            names = ", ".join(MODELS)
            raise ConfigError(f"model: unknown {text!r}; use one of {names}, or millions of parameters such as 350M")
        known = (round(float(match[1]) * 1e6), DEFAULT_COMPUTE_MS)
    milliseconds = known[1] if compute_ms is None else compute_ms
    return Workload(text, known[0], Seconds(milliseconds / 1e3))


def wire_bytes(level: Level, parameters: int, world_size: int) -> Bytes:
    """Bytes that each rank sends in a step: 2 (W-1)/W of the gradient or of its frames."""
    size = 4 * parameters if level.off else build_codec(level).size_of(parameters)
    return Bytes(all_reduce_bytes(size, world_size))


def predict(work: Workload, path: NetworkPath, world_size: int, costs: Mapping[str, float]) -> list[LevelPrediction]:
    """One prediction per level of `costs`, the encoding seconds per element (see encoding_cost.py)."""
    predictions = []
    for text, cost in costs.items():
        level = Level.parse(text)
        sent = wire_bytes(level, work.parameters, world_size)
        transfer = float(sent / path.rate) + cost * work.parameters
        trips = world_size - 1 if level.off else 2  # a ring takes 2 (W-1) one-way hops, shards two exchanges
        group, own = (max(0.0, transfer + n * path.rtt - HIDDEN * work.compute) for n in (trips, 1))
        compute = float(work.compute)
        price = PriceList(()).of(level)
        predictions.append(LevelPrediction(text, compute + group, group, int(sent), compute + own, price))
    return predictions


def recommend(
    predictions: Sequence[LevelPrediction], findings: Sequence[Finding], work: Workload, path: NetworkPath | None
) -> str:
    """What to do. Errors come first: compression does not repair a wrong interface."""
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        return f"Fix the set-up first: {errors[0].fix}."
    if path is None or not predictions:
        return "The network could not be measured; see the findings."
    chosen, plain = _chosen(predictions), predictions[0]
    network = f"{path.rate} and a round trip of {path.rtt}"
    if chosen.level == "off":
        return (
            f"Plain DDP is good enough for {work.model}: with {network} a step takes about {Seconds(plain.seconds)}, "
            f"of which it waits {Seconds(plain.exposed)} for the network.{bucket_advice(chosen, work, path)}"
        )
    cost = f"about {chosen.price - 1:.0%} more steps to the same loss" if chosen.price > 1.005 else "the same accuracy"
    sentences = (
        f'Use gradwire.attach(model): with {network} "auto" would use {chosen.level}. A step of {work.model} then '
        f"takes about {Seconds(chosen.seconds)} instead of {Seconds(plain.seconds)} "
        f"({plain.seconds / chosen.seconds:.1f}x), with {cost}.",
        transport_advice(chosen),
        lossier_advice(chosen, predictions),
        bucket_advice(chosen, work, path),
    )
    return "".join(sentences)


def _chosen(predictions: Sequence[LevelPrediction]) -> LevelPrediction:
    """The least lossy of the quickest levels that cost next to no steps."""
    cheap = [one for one in predictions if one.price <= 1 + EXTRA_STEPS]
    fastest = min(one.seconds * one.price for one in cheap)
    return next(one for one in cheap if one.seconds * one.price <= AS_FAST * fastest)


def transport_advice(chosen: LevelPrediction) -> str:
    """A sentence where another transport would shorten the step."""
    if chosen.seconds < WORTH * chosen.own_wire:
        return ""
    return (
        f' Over gradwire\'s own transport it would take about {Seconds(chosen.own_wire)}: "auto" opens one and '
        "measures it, if the hosts' ports are open to each other."
    )


def lossier_advice(chosen: LevelPrediction, predictions: Sequence[LevelPrediction]) -> str:
    """A sentence where a level that costs steps may be quicker all the same."""
    best = min(predictions, key=lambda one: one.seconds * one.price)
    if best.seconds * best.price * WORTH > chosen.seconds * chosen.price:
        return ""
    return (
        f" {best.level} would take {Seconds(best.seconds)} a step, but up to {best.price:.1f} times as many steps, "
        f"which depends on the model; extra_steps = {best.price - 1:.1f} in the configuration allows it."
    )


def bucket_advice(chosen: LevelPrediction, work: Workload, path: NetworkPath) -> str:
    """A second sentence if smaller buckets than DDP's default would overlap more; otherwise nothing."""
    gradient, backward = 4 * work.parameters, float(work.compute) * 2 / 3
    default = [(backward * end / gradient, end - begin) for begin, end in pairwise(_ends(gradient))]
    rate = float(path.rate) * gradient / max(chosen.wire_bytes, 1)
    advice = advise(default, rate, float(path.rtt), chosen.seconds)
    if advice is None:
        return ""
    return f" DDP(bucket_cap_mb={advice.bucket_cap_mb}) would shorten it by about another {advice.gain:.0%} (overlap)."


def _ends(gradient: int) -> list[int]:
    """Ends of DDP's default buckets: the first has 1 MiB, the others 25 MiB."""
    return [0, *range(MEGABYTE, gradient, 25 * MEGABYTE), gradient]
