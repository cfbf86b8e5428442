"""Site: ranks that are near each other sum among themselves first; one leader per site speaks for them across.

In: parcels in the order of buckets, the same on all ranks of the site. Each goes through three stations: sum inside the
site (by the existing backend, or gloo where that takes no CPU tensors), the trees between sites (leaders only), and
back from the leader to its site. Who is where says a file (`planning.sites`), read by rank 0 for all, or each rank's
GRADWIRE_SITE. The leader is the lowest rank. Two groups and two threads of their own keep the order of collectives: one
for sums, one for results, so that several buckets are under way at once. A site that was cut off and is taken back is
handed the others' state through its leader: before the results of that step, everybody in the site gets it.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.aggregate.handing import Estate
from gradwire.aggregate.parcel import Parcel
from gradwire.errors import ConfigError, GradwireError, LinkError
from gradwire.transport.collective import explain
from gradwire.transport.lanes import host_backend
from gradwire.transport.notes import Notes

VARIABLE = "GRADWIRE_SITE"
Across = Callable[[Parcel], None]


@dataclass(frozen=True, slots=True)
class Sites:
    """Who is where: ranks by site, each in rising order; sites in the order of their leaders."""

    groups: tuple[tuple[int, ...], ...]

    @classmethod
    def single(cls, world_size: int) -> Sites:
        """Every rank a site of its own."""
        return cls(tuple((rank,) for rank in range(world_size)))

    @property
    def leaders(self) -> tuple[int, ...]:
        return tuple(group[0] for group in self.groups)

    def of(self, rank: int) -> tuple[int, ...]:
        return next(group for group in self.groups if rank in group)


def sites_of(names: Sequence[str]) -> Sites | None:
    """Sites from each rank's name for its own; None when nobody named one, or every rank is a site of its own."""
    if not any(names):
        return None
    silent = [rank for rank, name in enumerate(names) if not name]
    if silent:
        raise ConfigError(f"{VARIABLE}: set on some ranks but not on rank {silent[0]}; set it on all, or on none")
    groups: dict[str, list[int]] = {}
    for rank, name in enumerate(names):
        groups.setdefault(name, []).append(rank)
    if len(groups) == len(names):
        return None
    return Sites(tuple(sorted(tuple(group) for group in groups.values())))


def names_from(path: Path, world_size: int) -> list[str]:
    """Each rank's site, from a JSON file of site names and their ranks: {"paris": [0, 1], "tokyo": [2, 3]}."""
    try:
        told = msgspec.json.decode(path.read_bytes(), type=dict[str, list[int]])
    except (OSError, msgspec.DecodeError) as error:
        form = '{"paris": [0, 1], "tokyo": [2, 3]}'
        raise ConfigError(f"planning.sites: {path} cannot be read as {form}: {error}") from error
    names = [""] * world_size
    for name, ranks in told.items():
        for rank in ranks:
            if not name or not 0 <= rank < world_size or names[rank]:
                raise ConfigError(f"planning.sites: {path}: rank {rank} at {name!r} is listed twice or is no rank here")
            names[rank] = name
    if "" in names:
        raise ConfigError(f"planning.sites: {path} does not say where rank {names.index('')} is")
    return names


def ask_sites(notes: Notes, path: str = "", environment: Mapping[str, str] | None = None) -> Sites | None:
    """What rank 0 reads in the file, or else every rank's GRADWIRE_SITE; all come to the same answer or error."""
    if not path:
        environment = os.environ if environment is None else environment
        return sites_of(notes.gather("site", environment.get(VARIABLE, ""), str))
    if notes.rank == 0:
        try:
            notes.tell("sites", {"names": names_from(Path(path), notes.world_size), "error": []})
        except ConfigError as error:
            notes.tell("sites", {"names": [], "error": [str(error)]})
    told = notes.hear("sites", 0, dict[str, list[str]])
    if told["error"]:
        raise ConfigError(told["error"][0])
    return sites_of(told["names"])


def open_groups(
    sites: Sites, group: dist.ProcessGroup, timeout: float
) -> tuple[list[dist.ProcessGroup], dist.ProcessGroup | None]:
    """This rank's two groups inside its site, and the leaders' group if it is one. Every rank of the job calls this."""
    everybody = dist.get_process_group_ranks(group)
    rank = dist.get_rank(group)
    limit, backend = timedelta(seconds=timeout), host_backend(group)
    own: list[dist.ProcessGroup] = []
    for members in sites.groups:
        for _ in range(2):
            made = dist.new_group([everybody[member] for member in members], timeout=limit, backend=backend)
            if rank in members:
                own.append(made)
    leaders = dist.new_group([everybody[leader] for leader in sites.leaders], timeout=limit, backend=backend)
    return own, leaders if rank in sites.leaders else None


class NeighbourError(LinkError):
    """A collective inside the site failed: somebody here is gone."""


class Inheritance:
    """The estate of a site's leader: what it is handed, its neighbours are handed too."""

    def __init__(self, own: Estate) -> None:
        self._own = own
        self._came: list[Tensor] = []

    def give(self, step: int) -> tuple[bytes, Sequence[Tensor]]:
        return self._own.give(step)

    def take(self, header: bytes, body: Tensor) -> None:
        self._own.take(header, body)
        self._came = [torch.frombuffer(bytearray(header), dtype=torch.uint8), body]

    def share(self, broadcast: Callable[[Tensor], None], leads: bool) -> None:
        """All ranks of the site call this once a step: two numbers, and what came if there is any."""
        came, self._came = self._came, []
        sizes = torch.tensor([part.numel() for part in came] or [0, 0])
        broadcast(sizes)
        if int(sizes[0]):
            header, body = came or [torch.empty(int(size), dtype=torch.uint8) for size in sizes]
            broadcast(header)
            broadcast(body)
            if not leads:
                self._own.take(bytes(header.numpy()), body)


class Site:
    """One rank's part. `across` is the leader's way to the other sites, None on everybody else."""

    def __init__(self, groups: Sequence[dist.ProcessGroup], across: Across | None) -> None:
        self._sum_group, self._share_group = groups
        self._across = across
        self.size = self._sum_group.size()
        self._inheritance: Inheritance | None = None
        self._first = True
        self._abandoned = False
        # Residuals, by their place in memory, that nothing waits in any more.
        self._emptied: set[int] = set()
        self._sums: queue.SimpleQueue[Parcel | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[Parcel, BaseException | None] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run_sums, name="gradwire-site-sum", daemon=True),
            threading.Thread(target=self._run_results, name="gradwire-site-share", daemon=True),
        ]
        self._order: queue.SimpleQueue[queue.SimpleQueue[BaseException | None]] = queue.SimpleQueue()
        for thread in self._threads:
            thread.start()

    @property
    def leads(self) -> bool:
        return self._across is not None

    def submit(self, parcel: Parcel) -> None:
        self._sums.put(parcel)

    def hand_over(self, estate: Estate) -> Estate:
        """Before the first step, on all ranks of the site: what the leader is to hand on; what its walker is to use."""
        self._inheritance = Inheritance(estate)
        return self._inheritance

    def abandon(self) -> None:
        """Begin nothing more here: another site has the parcels, and their gradients, by now."""
        self._abandoned = True
        self._sums.put(None)

    def close(self, timeout: float = 10.0) -> None:
        self._sums.put(None)
        for thread in self._threads:
            thread.join(timeout)

    def _run_sums(self) -> None:
        """Sum each bucket inside the site; the leader sends it across, where it may overtake others."""
        while (parcel := self._sums.get()) is not None:
            self._send_what_waited(parcel)
            error = self._collective(lambda p=parcel: self._sum_group.allreduce([p.gradient]).wait())  # type: ignore[misc]
            crossed: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
            if error is not None or self._across is None:
                crossed.put(error)
            else:
                self._across(replace(parcel, done=crossed.put, weight=self.size))
            self._order.put(crossed)
            self._results.put((parcel, error))
        self._results.put(None)

    def _send_what_waited(self, parcel: Parcel) -> None:
        """Only the leader's residual crosses. What waits elsewhere, from a job that had other sites or none, goes with
        the first sum; nothing comes after it."""
        if not self.leads and parcel.residual.data_ptr() not in self._emptied:
            self._emptied.add(parcel.residual.data_ptr())
            parcel.gradient.add_(parcel.residual)
            parcel.residual.zero_()

    def _run_results(self) -> None:
        """In the order of buckets: wait until the leader has the mean, then everybody gets it."""
        while (item := self._results.get()) is not None:
            parcel, error = item
            error = self._order.get().get() or error
            if error is None:
                error = self._collective(lambda p=parcel: self._share(p))  # type: ignore[misc]
            parcel.done(error)

    def _share(self, parcel: Parcel) -> None:
        if self._first and self._inheritance is not None:
            self._inheritance.share(self._broadcast, self.leads)
        self._first = parcel.bucket.is_last
        self._broadcast(parcel.gradient)

    def _broadcast(self, tensor: Tensor) -> None:
        """From the leader, the first of the group."""
        self._share_group.broadcast(tensor, 0).wait()

    def _collective(self, run: Callable[[], object]) -> BaseException | None:
        if self._abandoned:
            return NeighbourError("this site was founded anew")
        try:
            run()
        except GradwireError as error:
            return error
        except RuntimeError as error:
            return NeighbourError(explain(error, "inside the site: the collective"))
        return None
