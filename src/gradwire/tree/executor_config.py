"""Executor configuration: timeouts, loss tolerance and elasticity of one member's tree executor."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExecutorConfig:
    """`tolerance` is the fraction of a contribution that must reach the root; 1 is everything.

    `side` lets frames take side routes. `elastic` lets the others continue when a member is lost (quorum:
    `plan.membership.regroup`). The lost member may rejoin within `rejoin` seconds if there is a replica state to send.
    """

    timeout: float = 120.0
    tolerance: float = 1.0
    stochastic: bool = True
    side: bool = False
    elastic: bool = False
    rejoin: float = 0.0
