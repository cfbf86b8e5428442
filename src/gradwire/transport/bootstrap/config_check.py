"""Config check: requires the same gradwire version and settings on all ranks; every rank names a difference.

    1. every rank publishes what must be equal through torch's store
    2. rank 0 compares, and publishes the first difference

Rank 0 reads all values and the others one, so that a thousand ranks do not need a million reads.
"""

from __future__ import annotations

from collections.abc import Mapping

from gradwire.errors import ConfigError, LinkError
from gradwire.transport.bootstrap.store_exchange import StoreExchange


def require_same_settings(exchange: StoreExchange, facts: Mapping[str, str]) -> None:
    """ConfigError on every rank when one rank's facts differ from rank 0's. Every rank calls this."""
    try:
        exchange.publish("settings", facts)  # 1
        if exchange.rank == 0:
            settings = exchange.read_all("settings", dict[str, str])
            exchange.publish("verdict", difference(settings))  # 2
        verdict = exchange.read("verdict", 0, str)
    except LinkError as error:
        raise LinkError(
            f"not all of {exchange.world_size} ranks made this call within {exchange.timeout:g} s ({error}); all ranks "
            "must attach, or load their state, at the same point: with torchrun, start all through gradwire.run or none"
        ) from error
    if verdict:
        raise ConfigError(verdict)


def difference(settings: list[dict[str, str]]) -> str:
    """The first thing that differs, in one sentence; empty when nothing does."""
    for rank, facts in enumerate(settings):
        for name in settings[0] | facts:
            first, here = settings[0].get(name, "unknown"), facts.get(name, "unknown")
            if first != here:
                return f"{name}: rank 0 has {first}, rank {rank} has {here}; give every rank the same"
    return ""
