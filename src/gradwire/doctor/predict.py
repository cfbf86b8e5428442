"""Predict: the step time at each level on the measured network, and a one-sentence recommendation. Pure.

Model: step = compute + max(0, communication - hidden); communication = bytes / slowest path + round trips + encoding.
`hidden` is what DDP overlaps: nine tenths of backward, which is two thirds of compute. Each host is assumed to have one
link that all its transfers share. (`decide/cost_model.py` needs a measured step and its buckets; here there is none.)
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

# Least lossy first: among levels that are about as fast, the first one is recommended.
LADDER = ("off", "fp16", "int8", "topk:0.1+int8", "topk:0.01+int8")
# A less lossy level is recommended if its step takes at most this many times the fastest.
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
        trips = world_size - 1 if level.off else 2  # a ring takes 2 (W-1) one-way hops, shards two exchanges
        communication = float(sent / path.rate) + trips * path.rtt + cost * work.parameters
        exposed = max(0.0, communication - HIDDEN * work.compute)
        predictions.append(LevelPrediction(text, float(work.compute) + exposed, exposed, int(sent)))
    return predictions


def recommend(
    predictions: Sequence[LevelPrediction], findings: Sequence[Finding], work: Workload, path: NetworkPath | None
) -> str:
    """One sentence. Errors come first: compression does not repair a wrong interface."""
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        return f"Fix the set-up first: {errors[0].fix}."
    if path is None or not predictions:
        return "The network could not be measured; see the findings."
    fastest = min(prediction.seconds for prediction in predictions)
    chosen = next(one for one in predictions if one.seconds <= AS_FAST * fastest)
    plain = predictions[0]
    network = f"{path.rate} and a round trip of {path.rtt}"
    if chosen.level == "off":
        return (
            f"Plain DDP is good enough for {work.model}: with {network} a step takes about {Seconds(plain.seconds)}, "
            f"of which it waits {Seconds(plain.exposed)} for the network.{bucket_advice(chosen, work, path)}"
        )
    return (
        f'Use gradwire.attach(model, "{chosen.level}"): with {network} a step of {work.model} takes about '
        f"{Seconds(chosen.seconds)} instead of {Seconds(plain.seconds)} ({plain.seconds / chosen.seconds:.1f}x)."
        + bucket_advice(chosen, work, path)
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
