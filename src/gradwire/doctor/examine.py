"""The examination, from facts to recommendation. Every rank runs it; every rank gets the same report."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass

from gradwire.doctor import facts, probe
from gradwire.doctor.cost import encoding_costs
from gradwire.doctor.findings import find
from gradwire.doctor.predict import LADDER, NetworkPath, Workload, predict, recommend
from gradwire.doctor.responder import Responder
from gradwire.doctor.schedule import Pair, target_of, transfers
from gradwire.doctor.types import DoctorReport, FlowResult, HostFacts, Reach
from gradwire.doctor.wire import TOKEN_BYTES
from gradwire.transport.bootstrap.store_exchange import StoreExchange
from gradwire.units import Rate, Seconds


@dataclass(frozen=True, slots=True)
class ExaminationPlan:
    """How hard to look: seconds and bytes of each transfer, and the longest that all transfers together may take."""

    seconds: float = 1.5
    most_bytes: int = 256_000_000
    budget: float = 90.0


@dataclass(frozen=True, slots=True)
class Measured:
    """All that the conclusions follow from; `costs` is what encoding takes on rank 0, per level and element."""

    hosts: list[HostFacts]
    reaches: list[Reach]
    flows: list[FlowResult]
    costs: dict[str, float]
    partial: bool


def examine(exchange: StoreExchange, work: Workload, plan: ExaminationPlan) -> DoctorReport:
    """1. a token, 2. facts, 3. reach every peer, 4. transfers in rounds, 5. the same conclusions on every rank."""
    token = _token(exchange)  # 1
    responder = Responder(exchange.rank, token)
    try:
        master = os.environ["MASTER_ADDR"]
        mine = facts.host_facts(exchange.rank, master, responder.tcp_port, responder.udp_port)
        hosts = exchange.gather("facts", mine, HostFacts)  # 2
        reaches = _reach_everyone(exchange, mine, hosts, token)  # 3
        rounds = transfers(exchange.world_size, most=round(plan.budget / (plan.seconds + 0.5)))
        partial = len(rounds) < len(transfers(exchange.world_size))
        flows = _transfer(exchange, hosts, token, rounds, plan)  # 4
    finally:
        responder.close()
    if exchange.rank == 0:
        exchange.publish("costs", encoding_costs(LADDER))
    measured = Measured(hosts, reaches, flows, exchange.read("costs", 0, dict[str, float]), partial)
    return conclude(measured, work)  # 5


def conclude(measured: Measured, work: Workload) -> DoctorReport:
    """Measurements -> report. Pure."""
    hosts, reaches, flows = measured.hosts, measured.reaches, measured.flows
    findings = find(hosts, reaches, flows)
    path = slowest(reaches, flows)
    predictions = predict(work, path, len(hosts), measured.costs) if path else []
    return DoctorReport(
        hosts, reaches, flows, findings, work.model, work.parameters, float(work.compute), predictions,
        recommend(predictions, findings, work, path), measured.partial,
    )  # fmt: skip


def slowest(reaches: list[Reach], flows: list[FlowResult]) -> NetworkPath | None:
    """The path every step waits for; None when nothing was measured."""
    rates = [flow.rate for flow in flows if flow.rate]
    trips = [reach.rtt for reach in reaches if reach.rtt is not None]
    return NetworkPath(Rate(min(rates)), Seconds(max(trips))) if rates and trips else None


def _token(exchange: StoreExchange) -> str:
    if exchange.rank == 0:
        exchange.publish("token", secrets.token_hex(TOKEN_BYTES))
    return exchange.read("token", 0, str)


def _reach_everyone(exchange: StoreExchange, mine: HostFacts, hosts: list[HostFacts], token: str) -> list[Reach]:
    """In step, each rank at another peer, so that nobody is asked by all at once."""
    told: list[Reach] = []
    for distance in range(1, exchange.world_size):
        exchange.barrier(f"reach-{distance}")
        told.append(probe.reach(mine, hosts[(mine.rank + distance) % exchange.world_size], token))
    return [one for row in exchange.gather("reaches", told, list[Reach]) for one in row]


def _transfer(
    exchange: StoreExchange, hosts: list[HostFacts], token: str, rounds: list[list[Pair]], plan: ExaminationPlan
) -> list[FlowResult]:
    told: list[FlowResult] = []
    for number, pairs in enumerate(rounds):
        exchange.barrier(f"transfer-{number}", extra=plan.seconds)
        target = target_of(exchange.rank, pairs)
        if target is not None:
            told.append(probe.bulk(hosts[exchange.rank], hosts[target], token, plan.seconds, plan.most_bytes))
    return [one for row in exchange.gather("flows", told, list[FlowResult]) for one in row]
