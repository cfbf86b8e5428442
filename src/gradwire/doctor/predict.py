"""What a step would take at each level on the measured network, and the one sentence that follows. Pure.

Model: step = compute + max(0, communication - hidden); communication = bytes / slowest path + round trips + encoding.
`hidden` is what DDP overlaps: nine tenths of backward, which is two thirds of compute. Hosts are assumed to have one
link each that all their transfers share.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gradwire.compress.build import build_codec
from gradwire.decide.bucket_advice import MEGABYTE, advise
from gradwire.doctor.types import Finding, LevelPrediction
from gradwire.errors import ConfigError
from gradwire.level import Level
from gradwire.types import all_reduce_bytes
from gradwire.units import Bytes, Rate, Seconds

# Mildest first: among levels that are about as fast, the first one is recommended.
LADDER = ("off", "fp16", "int8", "topk:0.1+int8", "topk:0.01+int8")
# Within this factor of the fastest a milder level is the better choice.
AS_FAST = 1.1
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
    """What is to be synchronised: a model's parameters and the seconds of compute between two synchronisations."""

    model: str
    parameters: int
    compute: Seconds


@dataclass(frozen=True, slots=True)
class NetworkPath:
    """The slowest measured path: payload bytes per second, and the longest round trip."""

    rate: Rate
    rtt: Seconds


def parse_model(text: str, compute_ms: float | None = None) -> Workload:
    """A known model, or a number of millions of parameters: "resnet18", "350M"."""
    known = MODELS.get(text.lower())
    if known is None:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)[mM]", text)
        if match is None or float(match[1]) <= 0:
            names = ", ".join(MODELS)
            raise ConfigError(f"model: {text!r} is not one of {names}, nor millions of parameters as in 350M")
        known = (round(float(match[1]) * 1e6), DEFAULT_COMPUTE_MS)
    milliseconds = known[1] if compute_ms is None else compute_ms
    return Workload(text, known[0], Seconds(milliseconds / 1e3))


def wire_bytes(level: Level, parameters: int, world_size: int) -> Bytes:
    """What each rank sends in a step: 2 (W-1)/W of the gradient or of its frames."""
    size = 4 * parameters if level.off else build_codec(level).size_of(parameters)
    return Bytes(all_reduce_bytes(size, world_size))


def predict(work: Workload, path: NetworkPath, world_size: int, costs: Mapping[str, float]) -> list[LevelPrediction]:
    """One prediction a level of `costs`, which has the seconds that encoding takes per element (see cost.py)."""
    told = []
    for text, cost in costs.items():
        level = Level.parse(text)
        sent = wire_bytes(level, work.parameters, world_size)
        trips = world_size - 1 if level.off else 2  # a ring takes 2 (W-1) one-way hops, shards two exchanges
        communication = float(sent / path.rate) + trips * path.rtt + cost * work.parameters
        exposed = max(0.0, communication - HIDDEN * work.compute)
        told.append(LevelPrediction(text, float(work.compute) + exposed, exposed, int(sent)))
    return told


def recommend(
    predictions: Sequence[LevelPrediction], findings: Sequence[Finding], work: Workload, path: NetworkPath | None
) -> str:
    """One sentence. Mistakes come first: no compression repairs a wrong interface."""
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        return f"Repair the set-up first: {errors[0].fix}."
    if path is None or not predictions:
        return "Nothing could be measured; see the findings."
    fastest = min(prediction.seconds for prediction in predictions)
    chosen = next(one for one in predictions if one.seconds <= AS_FAST * fastest)
    plain = predictions[0]
    network = f"{path.rate} and {path.rtt} of round trip"
    if chosen.level == "off":
        return (
            f"Plain DDP is good enough for {work.model}: on {network} a step takes about {Seconds(plain.seconds)}, "
            f"of which {Seconds(plain.exposed)} wait for the network.{bucket_advice(chosen, work, path)}"
        )
    return (
        f'Use gradwire.attach(model, "{chosen.level}"): on {network} a step of {work.model} takes about '
        f"{Seconds(chosen.seconds)} instead of {Seconds(plain.seconds)} ({plain.seconds / chosen.seconds:.1f}x)."
        + bucket_advice(chosen, work, path)
    )


def bucket_advice(chosen: LevelPrediction, work: Workload, path: NetworkPath) -> str:
    """A further sentence where DDP's default buckets would spoil the overlap; nothing where they do not."""
    gradient, backward = 4 * work.parameters, float(work.compute) * 2 / 3
    default = [(backward * end / gradient, end - begin) for begin, end in pairwise(_ends(gradient))]
    rate = float(path.rate) * gradient / max(chosen.wire_bytes, 1)
    advice = advise(default, rate, float(path.rtt), chosen.seconds)
    if advice is None:
        return ""
    return f" With DDP(bucket_cap_mb={advice.bucket_cap_mb}) it overlaps more: about {advice.gain:.0%} shorter again."


def _ends(gradient: int) -> list[int]:
    """Where DDP's default buckets end: a first one of 1 MiB, then 25 each."""
    return [0, *range(MEGABYTE, gradient, 25 * MEGABYTE), gradient]
