"""Sites in the doctor's report: measured ones with what to set, GRADWIRE_SITE before them, differences as findings."""

from __future__ import annotations

import msgspec
from rich.console import Console

from gradwire.cli.doctor import render
from gradwire.doctor.examine import Measured, conclude
from gradwire.doctor.predict import parse_model
from gradwire.doctor.site_report import proposes_sites, report_sites
from gradwire.doctor.types import DoctorReport, FlowResult, HostFacts, Reach
from tests.doctor.test_findings import healthy, host

Measurements = tuple[list[HostFacts], list[Reach], list[FlowResult]]


def two_sites(names: tuple[str, ...] = ("", "", "", "")) -> Measurements:
    """Ranks 0 and 2 are near each other, ranks 1 and 3 are, and 40 ms lie between them."""
    _, reaches, flows = healthy(4)
    trips = [0.0005 if (reach.source - reach.target) % 2 == 0 else 0.04 for reach in reaches]
    far = [msgspec.structs.replace(reach, rtt=trip) for reach, trip in zip(reaches, trips, strict=True)]
    return [host(rank, site=name) for rank, name in enumerate(names)], far, flows


def concluded(measurements: Measurements) -> DoctorReport:
    return conclude(Measured(*measurements, {}, partial=False, nats=[]), parse_model("resnet18", None))


def printed(report: DoctorReport) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(render(report))
    return capture.get()


def test_measured_sites_are_shown_with_what_to_set() -> None:
    report = concluded(two_sites())
    assert [(site.name, site.ranks, site.hosts) for site in report.sites] == [
        ("site0", [0, 2], ["node0", "node2"]),
        ("site1", [1, 3], ["node1", "node3"]),
    ]
    assert {(site.inside, site.outside) for site in report.sites} == {(0.0005, 0.04)}
    assert proposes_sites(report.sites)
    text = printed(report)
    assert "Sites, by measured round trips and rates" in text
    assert "export GRADWIRE_SITE=site1   # on node1, node3" in text


def test_the_report_as_json_has_the_sites() -> None:
    report = concluded(two_sites())
    again = msgspec.json.decode(msgspec.json.encode(report), type=DoctorReport)
    assert again.sites == report.sites


def test_one_site_and_ranks_that_are_all_apart_need_no_setting() -> None:
    near = concluded(healthy())
    assert [site.ranks for site in near.sites] == [[0, 1, 2]]
    hosts, reaches, flows = healthy()
    apart = concluded((hosts, [msgspec.structs.replace(reach, rtt=0.08) for reach in reaches], flows))
    assert [site.ranks for site in apart.sites] == [[0], [1], [2]]
    for report in (near, apart):
        assert "export GRADWIRE_SITE" not in printed(report)


def test_the_variable_comes_before_what_was_measured() -> None:
    report = concluded(two_sites(("paris", "tokyo", "paris", "tokyo")))
    assert [(site.name, site.ranks) for site in report.sites] == [("paris", [0, 2]), ("tokyo", [1, 3])]
    assert "Sites, by GRADWIRE_SITE" in printed(report)
    assert "export GRADWIRE_SITE" not in printed(report)
    assert not [finding for finding in report.findings if "site" in finding.code]


def test_a_variable_that_says_something_else_is_a_finding() -> None:
    report = concluded(two_sites(("paris", "paris", "tokyo", "tokyo")))
    assert [site.ranks for site in report.sites] == [[0, 1], [2, 3]]
    (finding,) = [finding for finding in report.findings if finding.code == "sites-differ"]
    assert "into (0, 1) (2, 3); by round trips and rates they are (0, 2) (1, 3)" in finding.text


def test_a_rank_without_the_variable_is_a_finding() -> None:
    measurements = two_sites(("paris", "", "paris", ""))
    (finding,) = [finding for finding in concluded(measurements).findings if finding.code == "site-missing"]
    assert "rank 1 (node1)" in finding.text
    assert [site.ranks for site in report_sites(*measurements)] == [[0, 2], [1], [3]]
