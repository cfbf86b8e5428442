"""Kernel acks: acknowledgements of kernel TCP as a source for the governor, for groups whose sockets others opened."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from itertools import chain

import torch.distributed as dist

from gradwire.errors import GradwireError
from gradwire.runtime.ack_source import AckSource
from gradwire.runtime.tcp_sockets import TcpSockets, own_addresses, slow_start_after_idle
from gradwire.sense.tcp_links import TcpLinks
from gradwire.transport.bootstrap.address import own_address, published_address
from gradwire.transport.bootstrap.store_exchange import StoreExchange


def kernel_acks(group: dist.ProcessGroup, timeout: float) -> AckSource:
    """Every member calls this at the same point: ranks exchange the addresses of their connections. Without them
    nothing is known of the sockets, and steps and pulses give the estimates."""
    try:
        exchange = StoreExchange.for_group(group, "addresses", timeout)
        everyone = exchange.gather("addresses", [*own_addresses(), own_address(), published_address()], list[str])
    except (GradwireError, RuntimeError):
        return AckSource()
    others = {rank: addresses for rank, addresses in enumerate(everyone) if rank != group.rank()}
    sockets = TcpSockets(peer_addresses(chain.from_iterable(others.values())), store_ports())
    links = TcpLinks(sockets.read, restarts=slow_start_after_idle() is not False)
    owners = ranks_by_address(others)

    def ranks() -> dict[int, tuple[int, ...]]:
        return {cookie: owners.get(address, ()) for cookie, address in sockets.addresses().items()}

    return AckSource(links.links, links.moved, in_turns=True, ranks=ranks)


def ranks_by_address(addresses: Mapping[int, Iterable[str]]) -> dict[str, tuple[int, ...]]:
    """The ranks of each address. Several ranks of a host have one address: a connection leads to any of them."""
    found: dict[str, list[int]] = {}
    for rank, own in sorted(addresses.items()):
        for address in set(own):
            found.setdefault(address, []).append(rank)
    return {address: tuple(ranks) for address, ranks in found.items()}


def peer_addresses(found: Iterable[str]) -> frozenset[str]:
    """Loopback counts only where there is nothing else: on several hosts it leads to no peer."""
    addresses = frozenset(found)
    return frozenset(one for one in addresses if not one.startswith("127.") and one != "::1") or addresses


def store_ports() -> frozenset[int]:
    """The port of torch's store, whose connections carry no gradients."""
    port = os.environ.get("MASTER_PORT", "")
    return frozenset([int(port)] if port.isdigit() else [])
