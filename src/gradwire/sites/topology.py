"""SiteTopology: which ranks form a site (GRADWIRE_SITE or a file), and the process groups inside and between sites."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import msgspec
import torch.distributed as dist

from gradwire.errors import ConfigError
from gradwire.transport.bootstrap.store_exchange import StoreExchange
from gradwire.transport.lanes.open_lanes import host_backend

VARIABLE = "GRADWIRE_SITE"


@dataclass(frozen=True, slots=True)
class SiteTopology:
    """The ranks of each site, in rising order; sites in the order of their leaders."""

    groups: tuple[tuple[int, ...], ...]

    @classmethod
    def single(cls, world_size: int) -> SiteTopology:
        """Every rank a site of its own."""
        return cls(tuple((rank,) for rank in range(world_size)))

    @property
    def leaders(self) -> tuple[int, ...]:
        return tuple(group[0] for group in self.groups)

    def of(self, rank: int) -> tuple[int, ...]:
        return next(group for group in self.groups if rank in group)


def sites_of(names: Sequence[str]) -> SiteTopology | None:
    """Sites from the site name of each rank; None when no rank has one, or every rank is a site of its own."""
    if not any(names):
        return None
    unnamed = [rank for rank, name in enumerate(names) if not name]
    if unnamed:
        raise ConfigError(f"{VARIABLE}: set on some ranks but not on rank {unnamed[0]}; set it on all, or on none")
    groups: dict[str, list[int]] = {}
    for rank, name in enumerate(names):
        groups.setdefault(name, []).append(rank)
    if len(groups) == len(names):
        return None
    return SiteTopology(tuple(sorted(tuple(group) for group in groups.values())))


def names_from(path: Path, world_size: int) -> list[str]:
    """Each rank's site, from a JSON file of site names and their ranks: {"paris": [0, 1], "tokyo": [2, 3]}."""
    try:
        ranks_by_site = msgspec.json.decode(path.read_bytes(), type=dict[str, list[int]])
    except (OSError, msgspec.DecodeError) as error:
        form = '{"paris": [0, 1], "tokyo": [2, 3]}'
        raise ConfigError(f"planning.sites: {path} cannot be read as {form}: {error}") from error
    names = [""] * world_size
    for name, ranks in ranks_by_site.items():
        for rank in ranks:
            if not name or not 0 <= rank < world_size or names[rank]:
                raise ConfigError(
                    f"planning.sites: {path}: rank {rank} of site {name!r} is unknown or listed twice; list ranks 0 to "
                    f"{world_size - 1} once each, and give every site a name"
                )
            names[rank] = name
    if "" in names:
        raise ConfigError(f"planning.sites: {path} does not list rank {names.index('')}; list every rank once")
    return names


def find_sites(
    exchange: StoreExchange, path: str = "", environment: Mapping[str, str] | None = None
) -> SiteTopology | None:
    """From the file, which rank 0 reads for all, or else from GRADWIRE_SITE of every rank. All ranks get the same sites
    or the same error."""
    if not path:
        environment = os.environ if environment is None else environment
        return sites_of(exchange.gather("site", environment.get(VARIABLE, ""), str))
    if exchange.rank == 0:
        try:
            exchange.publish("sites", {"names": names_from(Path(path), exchange.world_size), "error": []})
        except ConfigError as error:
            exchange.publish("sites", {"names": [], "error": [str(error)]})
    result = exchange.read("sites", 0, dict[str, list[str]])
    if result["error"]:
        raise ConfigError(result["error"][0])
    return sites_of(result["names"])


def open_groups(
    sites: SiteTopology, group: dist.ProcessGroup, timeout: float
) -> tuple[list[dist.ProcessGroup], dist.ProcessGroup | None]:
    """This rank's two groups inside its site, and the leaders' group if it leads. Every rank of the job calls this."""
    all_ranks = dist.get_process_group_ranks(group)
    rank = dist.get_rank(group)
    limit, backend = timedelta(seconds=timeout), host_backend(group)
    own: list[dist.ProcessGroup] = []
    for members in sites.groups:
        for _ in range(2):
            created = dist.new_group([all_ranks[member] for member in members], timeout=limit, backend=backend)
            if rank in members:
                own.append(created)
    leaders = dist.new_group([all_ranks[leader] for leader in sites.leaders], timeout=limit, backend=backend)
    return own, leaders if rank in sites.leaders else None
