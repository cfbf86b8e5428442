"""Local peers: other libraries' local steps, as arithmetic and traffic, with the same number of local steps a round.

    torchft-diloco:H   torchft's DiLoCo with the outer optimizer of its own tests: SGD with Nesterov momentum,
                       0.7 / 0.9. Uncompressed
    post-local-sgd:H   torch's post_localSGD_hook and PeriodicModelAverager: synchronous gradients at first, then the
                       mean of the workers' weights, for the first time after one step alone and then after every H

Neither library is run. Pseudo-gradients and outer optimizers are gradwire's own, which for DiLoCo is the same
arithmetic: global weights - local weights, averaged, then one step of the outer optimizer. The weights of a round go
through the same uncompressed all-reduce as gradwire's. That favours both: torchft sends every parameter by itself and
has a quorum and a commit in every round, which take no time here, and DDP broadcasts buffers before every forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gradwire.config import OuterConfig
from gradwire.errors import ConfigError
from gradwire.simulate.local_training import LocalTrainingSimulation
from gradwire.simulate.training import SimulatedJob, SimulatedStep
from gradwire.types import Decision

# torch's example has 100 synchronous steps; runs shorter than 1,000 steps have a tenth of theirs.
SYNCHRONOUS: Final = 100
LEVEL: Final = "off"


@dataclass(frozen=True, slots=True)
class LocalPeer:
    """`warms_up`: its first steps are synchronous."""

    outer: OuterConfig
    warms_up: bool = False

    def synchronous_steps(self, steps: int) -> int:
        """Of a run of so many steps."""
        return min(SYNCHRONOUS, steps // 10) if self.warms_up else 0


LOCAL_PEERS: Final = {
    "torchft-diloco": LocalPeer(OuterConfig(kind="nesterov", lr=0.7, momentum=0.9)),
    "post-local-sgd": LocalPeer(OuterConfig(kind="average"), warms_up=True),
}


def local_steps_of(contestant: str) -> tuple[LocalPeer | None, int]:
    """Of "local:20" or "torchft-diloco:20"; ConfigError for another form."""
    kind, _, number = contestant.partition(":")
    if (kind != "local" and kind not in LOCAL_PEERS) or not number.isdigit() or int(number) < 1:
        peers = ", ".join(f"{name}:STEPS" for name in LOCAL_PEERS)
        raise ConfigError(f"local: {contestant!r} is not local:STEPS, {peers} or auto-local")
    return LOCAL_PEERS.get(kind), int(number)


class PeerSimulation(LocalTrainingSimulation):
    """Local steps after some synchronous ones; where there are any, the first round has one step."""

    def __init__(self, job: SimulatedJob, synchronous: int) -> None:
        self._synchronous = synchronous
        super().__init__(job)

    def step(self) -> SimulatedStep:
        stepped = super().step()
        if not self.workers.local and self.workers.step >= self._synchronous:
            self._begin_local(1)
        return stepped

    def _begin_local(self, sync_every: int) -> None:
        if self.workers.step >= self._synchronous:
            super()._begin_local(sync_every)

    def _end_round(self, decision: Decision) -> tuple[Decision, float]:
        ended = super()._end_round(decision)
        self._round_length = int(self._job.sync_every)
        return ended
