"""Packets: the packet-level simulator. Runs a plan's synchronisations on LTP itself, over the lab's link model, in
virtual time.

In: a Network (the same as the lab's), a Plan, a ReductionJob. Out: seconds of each synchronisation, one after the other
on the same connections: in the first LTP finds its rate, the later ones show the steady state. Frames wait in the
executor's own SendQueue. The time that the machine itself takes (wake-ups, copies, Python) is not simulated. For
small networks: a packet takes about five microseconds of CPU, so that three synchronisations of a sixteenth of AlexNet
over nine sites take 3.6 s.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from gradwire._native import PacketLink, PacketWorld
from gradwire.errors import ConfigError, LinkError
from gradwire.network import LinkSpec, Network
from gradwire.network.route import routes
from gradwire.plan.job import ReductionJob
from gradwire.simulate.underlay import matrix_of
from gradwire.simulate.world import build
from gradwire.tree.send_queue import SendQueue
from gradwire.types import LinkView, Plan

# Largest number of sites (use the flow simulator above), and virtual seconds after which a synchronisation has failed.
MOST_SITES = 32
LONGEST = 3600.0


@dataclass(frozen=True, slots=True)
class PacketRun:
    """Seconds of each synchronisation, and packets sent and lost in all of them."""

    seconds: tuple[float, ...]
    packets: int
    lost: int


def simulate_packets(network: Network, plan: Plan, job: ReductionJob, steps: int = 2, seed: int = 1) -> PacketRun:
    """Run `steps` synchronisations in a row; LinkError if one takes more than an hour of virtual time."""
    if len(network.ranks) > MOST_SITES:
        raise ConfigError(
            f"packets: {len(network.ranks)} sites, but at most {MOST_SITES} can be simulated packet by packet; "
            "simulate without --packets"
        )
    run = _Run(network, plan, job, seed)
    seconds = tuple(run.synchronise() for _ in range(steps))
    sent, lost = run.counts()
    return PacketRun(seconds, sent, lost)


class _Clock:
    def __init__(self, world: PacketWorld) -> None:
        self._world = world

    def now(self) -> float:
        return self._world.now


class _Wire:
    """The part of a wire that a SendQueue uses."""

    def __init__(self, world: PacketWorld, host: int, peers: set[int]) -> None:
        self._world, self._host, self._peers = world, host, peers

    def views(self) -> dict[int, LinkView]:
        return {peer: self._view(self._world.stats(self._host, peer)) for peer in self._peers}

    @staticmethod
    def _view(stats: dict[str, float]) -> LinkView:
        return LinkView(rtprop=stats["rtprop"], bandwidth=stats["bottleneck"] or None)


class _Run:
    """One job: hosts, connections, and the frames of the current synchronisation."""

    def __init__(self, network: Network, plan: Plan, job: ReductionJob, seed: int) -> None:
        self._native = PacketWorld(len(network.hosts), seed)
        self._add_links(network, seed)
        self._world = build(matrix_of(network), plan, job)
        paths = {lane: plan.routes.get(pair, pair) for pair, lane in self._world.lane_of.items()}
        self._pairs = {hop for path in paths.values() for hop in pairwise(path)}
        numbers = [next(i for i, host in enumerate(network.hosts) if host.name == rank.name) for rank in network.ranks]
        self._hops = [[(numbers[a], numbers[b]) for a, b in pairwise(paths[lane])] for lane in self._world.lane]
        peers: dict[int, set[int]] = {}
        for a, b in {(numbers[a], numbers[b]) for a, b in self._pairs}:
            peers.setdefault(a, set()).add(b)
            peers.setdefault(b, set()).add(a)
        for one, others in sorted(peers.items()):
            for other in sorted(others):
                if one < other:
                    self._native.connect(one, other)
        clock = _Clock(self._native)
        self._peers = peers
        self._send_queues = {one: SendQueue(_Wire(self._native, one, others), clock) for one, others in peers.items()}
        self._frames: dict[int, tuple[int, int, int]] = {}
        self._token = 0

    def counts(self) -> tuple[int, int]:
        """Packets sent and lost on all connections."""
        stats = [self._native.stats(one, other) for one, others in self._peers.items() for other in others]
        return round(sum(s["packets_sent"] for s in stats)), round(sum(s["packets_lost"] for s in stats))

    def synchronise(self) -> float:
        """One synchronisation from its first frame to its last."""
        world = self._world
        start = self._native.now
        self._missing = [[needs] * pieces for needs, pieces in zip(world.needs, world.pieces, strict=True)]
        self._tokens: dict[tuple[int, int, int], int] = {}
        for leg, hops in enumerate(self._hops):
            for piece in range(world.pieces[leg]):
                for hop, (source, target) in enumerate(hops):
                    self._token += 1
                    self._tokens[leg, piece, hop] = self._token
                    self._frames[self._token] = leg, piece, hop
                    self._native.expect(target, source, self._token, self._size(leg))
        for leg, needs in enumerate(world.needs):
            for piece in range(0 if needs else world.pieces[leg]):
                self._send(leg, piece, 0)
        left = sum(world.pieces)
        while left:
            landed = self._native.run(LONGEST)
            if not landed:
                raise LinkError(f"packets: {left} frames did not arrive within {LONGEST:g} s of virtual time")
            for at, host, token, sent in landed:
                if sent:
                    self._frame_sent(host, token)
                elif self._frame_arrived(token):
                    left -= 1
                    end = at
        return end - start

    def _size(self, leg: int) -> int:
        return max(1, round(self._world.nbytes[leg]))

    def _send(self, leg: int, piece: int, hop: int) -> None:
        source, target = self._hops[leg][hop]
        token, size = self._tokens[leg, piece, hop], self._size(leg)
        # The order of the executor's pieces: all trees progress in parallel.
        order = round(1e6 * (piece + 0.5) / self._world.pieces[leg]), leg, piece
        self._send_queues[source].put(target, order, size, partial(self._native.send, source, target, token, size))

    def _frame_sent(self, host: int, token: int) -> None:
        leg, _, hop = self._frames.pop(token)
        self._send_queues[host].done(self._hops[leg][hop][1], self._size(leg))

    def _frame_arrived(self, token: int) -> bool:
        """Forward a frame to its next hop, or, at its destination (True), release the legs that wait for it."""
        leg, piece, hop = self._frames[token]
        if hop + 1 < len(self._hops[leg]):
            self._send(leg, piece, hop + 1)
            return False
        for waiter in self._world.waiters[leg]:
            self._missing[waiter][piece] -= 1
            if not self._missing[waiter][piece]:
                self._send(waiter, piece, 0)
        return True

    def _add_links(self, network: Network, seed: int) -> None:
        for index, link in enumerate(network.links):
            self._native.add_link(_values(link.spec), seed * 1_000_003 + index, network.overhead)
        index_of = {host.name: index for index, host in enumerate(network.hosts)}
        for (source, target), path in routes(network).items():
            self._native.set_path(index_of[source], index_of[target], list(path))


def _values(spec: LinkSpec) -> PacketLink:
    values = PacketLink()
    values.rate = float(spec.mean_rate)
    values.delay, values.jitter, values.loss = float(spec.delay), float(spec.jitter), spec.loss
    values.reorder, values.reorder_by, values.duplicate = spec.reorder, float(spec.reorder_by), spec.duplicate
    values.queue, values.mtu = spec.queue_bytes, spec.mtu
    if spec.burst is not None:
        values.burst_enter, values.burst_leave, values.burst_loss = spec.burst.enter, spec.burst.leave, spec.burst.loss
    return values
