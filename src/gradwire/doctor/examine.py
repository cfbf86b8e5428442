"""Examine: runs the whole examination on every rank; every rank gets the same report."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass

from gradwire.doctor import probe
from gradwire.doctor.encoding_cost import encoding_costs
from gradwire.doctor.findings import find
from gradwire.doctor.host_facts import host_facts
from gradwire.doctor.nat_probe import Reflector, examine_nat
from gradwire.doctor.predict import LADDER, NetworkPath, Workload, predict, recommend
from gradwire.doctor.probe_protocol import TOKEN_BYTES
from gradwire.doctor.responder import Responder
from gradwire.doctor.route_advice import advise_routes
from gradwire.doctor.schedule import Pair, target_of, transfers
from gradwire.doctor.site_report import report_sites
from gradwire.doctor.types import DoctorReport, FlowResult, HostFacts, NatFacts, Reach
from gradwire.transport.bootstrap.store_exchange import StoreExchange
from gradwire.units import Rate, Seconds


@dataclass(frozen=True, slots=True)
class ExaminationPlan:
    """Limits of the measurement: seconds and bytes of each transfer, and seconds of all transfers together."""

    seconds: float = 1.5
    most_bytes: int = 256_000_000
    budget: float = 90.0


@dataclass(frozen=True, slots=True)
class Measured:
    """All measurements; `costs` is rank 0's encoding time per level and element."""

    hosts: list[HostFacts]
    reaches: list[Reach]
    flows: list[FlowResult]
    costs: dict[str, float]
    partial: bool
    nats: list[NatFacts]


def examine(exchange: StoreExchange, work: Workload, plan: ExaminationPlan) -> DoctorReport:
    """1. share a token, 2. gather facts, 3. probe every peer, 4. transfer in rounds, 5. conclude on every rank."""
    token = _token(exchange)  # 1
    responder, reflector = Responder(exchange.rank, token), Reflector(token)
    try:
        master = os.environ["MASTER_ADDR"]
        mine = host_facts(exchange.rank, master, responder.tcp_port, responder.udp_port, reflector.ports)
        hosts = exchange.gather("facts", mine, HostFacts)  # 2
        reaches = _probe_peers(exchange, mine, hosts, token)  # 3
        peers = [host for host in hosts if host.rank != mine.rank]
        nats = exchange.gather("nats", examine_nat(mine, peers, token), NatFacts)
        rounds = transfers(exchange.world_size, most=round(plan.budget / (plan.seconds + 0.5)))
        partial = len(rounds) < len(transfers(exchange.world_size))
        flows = _transfer(exchange, hosts, token, rounds, plan)  # 4
    finally:
        reflector.close()
        responder.close()
    if exchange.rank == 0:
        exchange.publish("costs", encoding_costs(LADDER))
    measured = Measured(hosts, reaches, flows, exchange.read("costs", 0, dict[str, float]), partial, nats)
    return conclude(measured, work)  # 5


def conclude(measured: Measured, work: Workload) -> DoctorReport:
    """The report of these measurements. Pure."""
    hosts, reaches, flows = measured.hosts, measured.reaches, measured.flows
    findings = find(hosts, reaches, flows, measured.nats)
    path = slowest(reaches, flows)
    predictions = predict(work, path, len(hosts), measured.costs) if path else []
    sites = report_sites(hosts, reaches, flows)
    return DoctorReport(
        hosts, reaches, flows, findings, work.model, work.parameters, float(work.compute), predictions,
        recommend(predictions, findings, work, path), measured.partial, sites,
        advise_routes(len(hosts), work, reaches, flows, sites) if path else None, measured.nats,
    )  # fmt: skip


def slowest(reaches: list[Reach], flows: list[FlowResult]) -> NetworkPath | None:
    """The slowest path, which every step waits for; None if nothing was measured."""
    rates = [flow.rate for flow in flows if flow.rate]
    trips = [reach.rtt for reach in reaches if reach.rtt is not None]
    return NetworkPath(Rate(min(rates)), Seconds(max(trips))) if rates and trips else None


def _token(exchange: StoreExchange) -> str:
    if exchange.rank == 0:
        exchange.publish("token", secrets.token_hex(TOKEN_BYTES))
    return exchange.read("token", 0, str)


def _probe_peers(exchange: StoreExchange, mine: HostFacts, hosts: list[HostFacts], token: str) -> list[Reach]:
    """In lockstep, each rank with a different peer, so that no rank is probed by all others at once."""
    own: list[Reach] = []
    for distance in range(1, exchange.world_size):
        exchange.barrier(f"reach-{distance}")
        own.append(probe.reach(mine, hosts[(mine.rank + distance) % exchange.world_size], token))
    return [one for row in exchange.gather("reaches", own, list[Reach]) for one in row]


def _transfer(
    exchange: StoreExchange, hosts: list[HostFacts], token: str, rounds: list[list[Pair]], plan: ExaminationPlan
) -> list[FlowResult]:
    own: list[FlowResult] = []
    for number, pairs in enumerate(rounds):
        exchange.barrier(f"transfer-{number}", extra=plan.seconds)
        target = target_of(exchange.rank, pairs)
        if target is not None:
            own.append(probe.bulk(hosts[exchange.rank], hosts[target], token, plan.seconds, plan.most_bytes))
    return [one for row in exchange.gather("flows", own, list[FlowResult]) for one in row]
