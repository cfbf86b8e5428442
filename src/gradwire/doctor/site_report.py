"""Site report: which ranks form a site, by GRADWIRE_SITE or by what was measured, and where the two differ. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.doctor.types import Finding, FlowResult, HostFacts, Reach, SiteFacts
from gradwire.sense.site_clusters import Sites, find_site_clusters
from gradwire.sites.topology import VARIABLE


def report_sites(hosts: Sequence[HostFacts], reaches: Sequence[Reach], flows: Sequence[FlowResult]) -> list[SiteFacts]:
    """The sites of a job, with their round trips: those that GRADWIRE_SITE names, or the measured ones."""
    named = _named(hosts)
    sites = named or measured_sites(len(hosts), reaches, flows)
    trips = _trips(reaches)
    return [_facts(number, site, hosts, trips, named is not None) for number, site in enumerate(sites)]


def measured_sites(count: int, reaches: Sequence[Reach], flows: Sequence[FlowResult]) -> Sites:
    """The sites that round trips and rates show."""
    rates = {(flow.source, flow.target): flow.rate for flow in flows if flow.rate}
    return find_site_clusters(count, _trips(reaches), rates)


def find_site_mistakes(
    hosts: Sequence[HostFacts], reaches: Sequence[Reach], flows: Sequence[FlowResult]
) -> list[Finding]:
    """GRADWIRE_SITE that some ranks lack, or that says something else than the measurement."""
    named, unnamed = _named(hosts), [host for host in hosts if not host.site]
    if named is None:
        return []
    if unnamed:
        text = f"{VARIABLE} is set on some ranks but not on rank {unnamed[0].rank} ({unnamed[0].host})"
        return [Finding("warning", "site-missing", text, f"set {VARIABLE} on all ranks, or on none")]
    measured = measured_sites(len(hosts), reaches, flows)
    if named == measured:
        return []
    text = f"{VARIABLE} divides the ranks into {_listed(named)}; by round trips and rates they are {_listed(measured)}"
    fix = f"check {VARIABLE}: ranks of one site should be nearer to each other than to the others"
    return [Finding("info", "sites-differ", text, fix)]


def proposes_sites(sites: Sequence[SiteFacts]) -> bool:
    """Whether setting GRADWIRE_SITE would say something: there are several measured sites, not each of one rank."""
    return not any(site.named for site in sites) and 1 < len(sites) < sum(len(site.ranks) for site in sites)


def _named(hosts: Sequence[HostFacts]) -> Sites | None:
    """By GRADWIRE_SITE, ranks without it alone; None where no rank has it."""
    if not any(host.site for host in hosts):
        return None
    groups: dict[str, list[int]] = {}
    for host in hosts:
        groups.setdefault(host.site or f"\0{host.rank}", []).append(host.rank)
    return tuple(sorted(tuple(group) for group in groups.values()))


def _facts(
    number: int, site: tuple[int, ...], hosts: Sequence[HostFacts], trips: dict[tuple[int, int], float], named: bool
) -> SiteFacts:
    inside = [trip for (a, b), trip in trips.items() if a in site and b in site]
    outside = [trip for (a, b), trip in trips.items() if (a in site) != (b in site)]
    name = hosts[site[0]].site if named else f"site{number}"
    names = sorted({hosts[rank].host for rank in site})
    return SiteFacts(name, list(site), names, max(inside, default=None), min(outside, default=None), named)


def _trips(reaches: Sequence[Reach]) -> dict[tuple[int, int], float]:
    return {(reach.source, reach.target): reach.rtt for reach in reaches if reach.rtt is not None}


def _listed(sites: Sites) -> str:
    return " ".join(f"({', '.join(map(str, site))})" for site in sites)
