"""Bound: the theoretical minimum time of an uncompressed fp32 ring all-reduce.

Each rank sends 2 (W-1)/W of the gradient, on the wire as full TCP packets with their headers, over its own access
link; the slowest direction decides. Valid only for networks with one switch.
"""

from __future__ import annotations

from gradwire.network import Network
from gradwire.types import all_reduce_bytes
from gradwire.units import Rate, Seconds

IP_TCP_HEADERS = 52  # with timestamps


def wire_share(network: Network) -> float:
    """Payload bytes per wire byte of a full packet."""
    mtu = min(link.spec.mtu for link in network.links)
    return (mtu - IP_TCP_HEADERS) / (mtu + network.overhead)


def ring_seconds(network: Network, nbytes: float) -> Seconds:
    """Time of one all-reduce of `nbytes`."""
    world = len(network.ranks)
    rate = Rate(min(float(link.spec.mean_rate) for link in network.links) * wire_share(network))
    return Seconds(all_reduce_bytes(round(nbytes), world) / float(rate))


def ring_step(network: Network, nbytes: float, compute: float, backward_share: float = 2 / 3) -> Seconds:
    """Time of a step whose communication overlaps with backward as far as possible."""
    backward = compute * backward_share
    return Seconds(compute - backward + max(backward, ring_seconds(network, nbytes)))
