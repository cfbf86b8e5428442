"""Runs tree executors of several ranks in one process, over real LTP on loopback or over a wire of dictionaries."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradwire.level import Level
from gradwire.plan.matrix import Matrix
from gradwire.plan.membership.link_estimates import KnownNetwork
from gradwire.plan.membership.member import Member
from gradwire.transport.wires.ltp import RELIABLE, Contract, Delivery, Endpoint, LtpConfig
from gradwire.tree.build import TreeParts, build_executor
from gradwire.tree.executor_config import ExecutorConfig
from gradwire.tree.membership_listener import MembershipListener
from gradwire.tree.plan_manager import PlanManagerConfig
from gradwire.tree.request import BucketRequest
from gradwire.types import Bucket, Plan

SECRET = b"0123456789abcdef0123456789abcdef"
LIMIT = 30.0


class FakeTransfer:
    def __init__(self, peer: int, buffer: Any) -> None:
        self.peer, self.buffer = peer, buffer
        self.delivery: Delivery | None = None
        self._event = threading.Event()

    @property
    def done(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> Delivery:
        if not self._event.wait(timeout):
            raise TimeoutError
        assert self.delivery is not None
        return self.delivery

    def cancel(self) -> None:
        self._event.set()

    def finish(self, size: int, missing: tuple[tuple[int, int], ...]) -> None:
        self.delivery = Delivery(self.peer, size, size - sum(n for _, n in missing), missing, "complete", 0.0)
        self._event.set()


class FakeNet:
    """Pairs sends with posts; `lose(contract, size)` says which byte ranges a tolerant transfer drops."""

    def __init__(self, lose: Any = None) -> None:
        self.lock = threading.Lock()
        self.sends: dict[tuple[int, int, int], FakeTransfer] = {}
        self.posts: dict[tuple[int, int, int], FakeTransfer] = {}
        self.contracts: dict[tuple[int, int, int], Contract] = {}
        self.lose = lose or (lambda contract, size: ())

    def wire(self, rank: int) -> FakeWire:
        return FakeWire(self, rank)

    def meet(self, key: tuple[int, int, int]) -> None:
        if key not in self.sends or key not in self.posts:
            return
        sent, posted = self.sends.pop(key), self.posts.pop(key)
        size = sent.buffer.numel()
        assert size <= posted.buffer.numel()
        posted.buffer[:size].copy_(sent.buffer)
        missing = self.lose(self.contracts.pop(key), size)
        for offset, length in missing:
            posted.buffer[offset : offset + length] = 0
        posted.finish(size, missing)
        sent.finish(size, missing)


class FakeWire:
    def __init__(self, net: FakeNet, rank: int) -> None:
        self.net, self.rank = net, rank

    def send(self, peer: int, buffer: Tensor, contract: Contract = RELIABLE, tag: int = 0) -> FakeTransfer:
        contract.check(buffer.numel())
        transfer = FakeTransfer(peer, buffer)
        with self.net.lock:
            key = (self.rank, peer, tag)
            assert key not in self.net.sends, "one transfer at a time per tag and pair"
            self.net.sends[key], self.net.contracts[key] = transfer, contract
            self.net.meet(key)
        return transfer

    def post(self, peer: int, buffer: Tensor, tag: int = 0, **_: float) -> FakeTransfer:
        transfer = FakeTransfer(peer, buffer)
        with self.net.lock:
            key = (peer, self.rank, tag)
            assert key not in self.net.posts, "one transfer at a time per tag and pair"
            self.net.posts[key] = transfer
            self.net.meet(key)
        return transfer

    def close(self) -> None:
        """Nothing is held."""


@contextmanager
def ltp_wires(count: int, config: LtpConfig | None = None) -> Iterator[list[Endpoint]]:
    """Endpoints of `count` ranks, every two of them connected."""
    with ExitStack() as stack:
        ends = [stack.enter_context(Endpoint(rank, SECRET, config)) for rank in range(count)]
        pairs = [(end, other) for end in ends for other in ends if other is not end]
        # Connect all first, then wait: both sides of a pair must call connect.
        for end, other in pairs:
            end.loop.connect(other.rank, end.config.host, other.port)
        for end, other in pairs:
            assert end.loop.wait_connected(other.rank, LIMIT) == "connected"
        yield ends


class RecordingListener(MembershipListener):
    """Records the members that were lost and how members rejoined."""

    def __init__(self) -> None:
        self.losses: list[int] = []
        self.rejoins: list[str] = []

    def lost(self, peer: int, why: str) -> None:
        self.losses.append(peer)

    def rejoined(self, member: int, how: str) -> None:
        self.rejoins.append(how)


@dataclass(frozen=True)
class Planning:
    """Gives every executor a plan manager that starts with this matrix."""

    matrix: Matrix
    config: PlanManagerConfig
    aware: bool = True


class Grid:
    """Executors that share a plan, and each rank's memory across steps."""

    def __init__(
        self,
        wires: Sequence[Any],
        plan: Plan,
        numels: Sequence[int],
        config: ExecutorConfig | None = None,
        replan: Any = None,
        planning: Planning | None = None,
    ) -> None:
        """With `planning` the caller has to `start`."""
        ranks = range(len(wires))
        self.wires, self.gone = wires, set[int]()
        replan = replan or (lambda members, version: plan)
        self.numels, self.step = list(numels), 0
        self.errors: list[BaseException] = []
        self.listeners = [RecordingListener() for _ in ranks]
        self.executors = [
            build_executor(
                TreeParts(
                    wire=wires[r],
                    member=Member(r, ranks, plan, replan),
                    config=config or ExecutorConfig(),
                    listener=self.listeners[r],
                    planning=(KnownNetwork(planning.matrix, planning.aware), planning.config) if planning else None,
                )
            )
            for r in ranks
        ]
        self.managers = [executor.manager for executor in self.executors if executor.manager is not None]
        self.residuals = [[torch.zeros(n) for n in numels] for _ in ranks]
        if planning is None:
            self.start()

    def start(self) -> None:
        for executor in self.executors:
            executor.start()

    def run(self, gradients: list[list[Tensor]], level: str) -> list[list[Tensor]]:
        """One step: gradients[rank][bucket] in, what each rank restored out."""
        results = [[g.clone() for g in own] for own in gradients]
        errors = self.errors = []
        left = threading.Semaphore(0)

        def done(error: BaseException | None) -> None:
            if error is not None:
                errors.append(error)
            left.release()

        for index, numel in enumerate(self.numels):
            bucket = Bucket(index, self.step, numel, 4, (), index == len(self.numels) - 1)
            for rank, executor in enumerate(self.executors):
                if rank in self.gone:
                    continue
                request = BucketRequest(
                    bucket, Level.parse(level), results[rank][index], self.residuals[rank][index], done
                )
                executor.submit(request)
        for _ in range((len(self.executors) - len(self.gone)) * len(self.numels)):
            assert left.acquire(timeout=LIMIT), "a bucket was not restored in time"
        self.step += 1
        if errors:
            raise errors[0]
        return results

    def leave(self, rank: int) -> None:
        """The rank's process ends, as far as the others can see."""
        self.gone.add(rank)
        self.wires[rank].close()

    def close(self) -> None:
        for executor in self.executors:
            executor.close()

    def __enter__(self) -> Grid:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
