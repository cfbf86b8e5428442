"""Weight check: compares the weights of all ranks by their digests, through torch's store.

    1. every rank publishes a digest of its tensors' names, types and shapes, and one of their bytes
    2. rank 0 compares, and publishes which ranks have other bytes than itself, in the order of a chain
    3. where names, types or shapes differ: the first such rank publishes them, rank 0 publishes the difference, and
       every rank raises it
    4. where bytes differ: those ranks publish a digest of each tensor, and rank 0 which tensors differ anywhere

Where all ranks hold the same weights, a rank sends a few hundred bytes. Digests are SHA-256: equal digests are equal
bytes, by mistake or on purpose.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gradwire.errors import ConfigError, LinkError
from gradwire.transport.bootstrap.store_exchange import StoreExchange


@dataclass(frozen=True, slots=True)
class WeightManifest:
    """One rank's tensors: a line about each (name, type, shape), and the digest of each one's bytes."""

    lines: tuple[str, ...]
    digests: tuple[str, ...]

    @property
    def layout(self) -> str:
        return _digest(self.lines)

    @property
    def content(self) -> str:
        return _digest(self.digests)


@dataclass(frozen=True, slots=True)
class WeightDifference:
    """What has to be sent so that every rank has rank 0's weights.

    `receivers` are the ranks that need it, near ones side by side; `tensors` are positions in the manifest. Both are
    empty where all ranks are equal. `by_sends`: every rank can exchange host memory by direct sends. `content` is rank
    0's, for a comparison after the transfer.
    """

    receivers: tuple[int, ...]
    tensors: tuple[int, ...]
    by_sends: bool
    content: str = ""


class WeightFacts(msgspec.Struct, frozen=True):
    """What a rank publishes in step 1; `place` is its site and its host."""

    layout: str
    content: str
    place: tuple[str, str]
    by_sends: bool


class WeightVerdict(msgspec.Struct, frozen=True):
    """What rank 0 publishes in step 2; `other_layout` is the first rank whose tensors are others."""

    receivers: list[int]
    by_sends: bool
    content: str
    other_layout: int | None = None


def compare_weights(
    exchange: StoreExchange, manifest: WeightManifest, place: tuple[str, str], by_sends: bool
) -> WeightDifference:
    """What to send; ConfigError on every rank where tensors have different names, types or shapes. Every rank calls
    this."""
    try:
        exchange.publish("weights", WeightFacts(manifest.layout, manifest.content, place, by_sends))  # 1
        if exchange.rank == 0:
            exchange.publish("verdict", judge(exchange.read_all("weights", WeightFacts)))  # 2
        verdict = exchange.read("verdict", 0, WeightVerdict)
    except LinkError as error:
        raise LinkError(
            f"weights: not all of {exchange.world_size} ranks compared theirs within {exchange.timeout:g} s ({error}); "
            "all ranks must construct their model, or call sync_weights, at the same point: with torchrun, start all "
            "through gradwire.run or none"
        ) from error
    if verdict.other_layout is not None:
        raise ConfigError(_explained(exchange, manifest, verdict.other_layout))  # 3
    if not verdict.receivers:
        return WeightDifference((), (), verdict.by_sends, verdict.content)
    tensors = _different_tensors(exchange, manifest, verdict.receivers)  # 4
    return WeightDifference(tuple(verdict.receivers), tensors, verdict.by_sends, verdict.content)


def judge(facts: Sequence[WeightFacts]) -> WeightVerdict:
    """Compares all ranks' facts with rank 0's. Pure."""
    first = facts[0]
    other = next((rank for rank, one in enumerate(facts) if one.layout != first.layout), None)
    receivers = [rank for rank in _side_by_side([one.place for one in facts]) if facts[rank].content != first.content]
    return WeightVerdict(receivers, all(one.by_sends for one in facts), first.content, other)


def layout_difference(mine: Sequence[str], theirs: Sequence[str], rank: int) -> str:
    """The first tensor that rank 0 (`mine`) and `rank` (`theirs`) have differently, in one sentence."""
    place = next((i for i, (one, other) in enumerate(zip(mine, theirs, strict=False)) if one != other), None)
    place = min(len(mine), len(theirs)) if place is None else place
    one, other = (lines[place] if place < len(lines) else "no more tensors" for lines in (mine, theirs))
    return (
        f"weights: the ranks have different models: rank 0 has {one}, rank {rank} has {other} (tensor {place + 1} of "
        f"{len(mine)}); build the same model on every rank"
    )


def _explained(exchange: StoreExchange, manifest: WeightManifest, rank: int) -> str:
    if exchange.rank == rank:
        exchange.publish("layout", manifest.lines)
    if exchange.rank == 0:
        theirs = exchange.read("layout", rank, list[str])
        exchange.publish("difference", layout_difference(manifest.lines, theirs, rank))
    return exchange.read("difference", 0, str)


def _different_tensors(exchange: StoreExchange, manifest: WeightManifest, receivers: Sequence[int]) -> tuple[int, ...]:
    if exchange.rank in receivers:
        exchange.publish("digests", manifest.digests)
    if exchange.rank == 0:
        different: set[int] = set()
        for rank in receivers:
            theirs = exchange.read("digests", rank, list[str])
            pairs = enumerate(zip(manifest.digests, theirs, strict=True))
            different |= {place for place, (one, other) in pairs if one != other}
        exchange.publish("tensors", sorted(different))
    return tuple(exchange.read("tensors", 0, list[int]))


def _side_by_side(places: Sequence[tuple[str, str]]) -> list[int]:
    """Ranks in rising order, except that those of one site, and in it those of one host, follow each other."""
    sites, hosts = [site or host for site, host in places], [host for _, host in places]
    return sorted(range(len(places)), key=lambda rank: (sites.index(sites[rank]), hosts.index(hosts[rank]), rank))


def _digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
