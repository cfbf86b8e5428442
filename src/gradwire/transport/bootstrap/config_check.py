"""Alike: all ranks run the same gradwire with the same settings, or every rank says which one does not, and how.

    1. every rank tells what must be alike through torch's store
    2. rank 0 compares, and tells all what it found

One rank reads all notes and the others one, so that a thousand ranks do not ask a million times.
"""

from __future__ import annotations

from collections.abc import Mapping

from gradwire.errors import ConfigError, LinkError
from gradwire.transport.bootstrap.store_exchange import StoreExchange


def require_alike(exchange: StoreExchange, facts: Mapping[str, str]) -> None:
    """ConfigError on every rank when one rank's facts differ from rank 0's. Every rank calls this."""
    try:
        exchange.publish("settings", facts)  # 1
        if exchange.rank == 0:
            told = exchange.read_all("settings", dict[str, str])
            exchange.publish("verdict", difference(told))  # 2
        verdict = exchange.read("verdict", 0, str)
    except LinkError as error:
        raise LinkError(
            f"not all of {exchange.world_size} ranks came within {exchange.timeout:g} s ({error}); every rank must "
            "attach, or load its state, at the same point: with torchrun, start every rank through gradwire.run or none"
        ) from error
    if verdict:
        raise ConfigError(verdict)


def difference(told: list[dict[str, str]]) -> str:
    """The first thing that differs, in one sentence; empty when nothing does."""
    for rank, facts in enumerate(told):
        for name in told[0] | facts:
            first, here = told[0].get(name, "unknown"), facts.get(name, "unknown")
            if first != here:
                return f"{name}: rank 0 has {first}, rank {rank} has {here}; give every rank the same"
    return ""
