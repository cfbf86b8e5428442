"""The doctor's word on trees: what plan = "auto" would do with the measured matrix, and why."""

from __future__ import annotations

import msgspec
import pytest

from gradwire.doctor.predict import parse_model
from gradwire.doctor.route_advice import CAVEAT, advise_routes, route_sentence
from gradwire.doctor.site_report import report_sites
from gradwire.doctor.types import DoctorReport, FlowResult, Reach, RouteAdvice
from tests.doctor.test_findings import healthy, host
from tests.doctor.test_site_report import Measurements, concluded, printed

MBIT = 1e6 / 8
WORK = parse_model("1M")


def changed(count: int, rate: dict[frozenset[int], float], far: float = 0.04, sites: bool = False) -> Measurements:
    """100 Mbit/s and a round trip of `far` between all, but other rates between some; `sites`: halves are near."""
    hosts = [host(rank) for rank in range(count)]
    _, reaches, flows = healthy(count)
    half = count // 2

    def trip(one: Reach) -> float:
        return 0.0003 if sites and (one.source < half) == (one.target < half) else far

    def carried(one: FlowResult) -> float:
        return rate.get(frozenset((one.source, one.target)), 100.0) * MBIT

    return (
        hosts,
        [msgspec.structs.replace(one, rtt=trip(one)) for one in reaches],
        [msgspec.structs.replace(one, rate=carried(one)) for one in flows],
    )


def advice(measured: Measurements) -> RouteAdvice:
    hosts, reaches, flows = measured
    return advise_routes(len(hosts), WORK, reaches, flows, report_sites(*measured))


def test_equal_links_stay_flat_and_the_doctor_says_why() -> None:
    found = advice(changed(4, {}))
    assert found.way == "flat"
    assert found.reason.startswith("links are about equal: 100 Mbit/s usually")
    assert route_sentence(found) == (
        'plan = "auto" would sum between all ranks, as without a plan: links are about equal: 100 Mbit/s usually, '
        "100 Mbit/s at the slowest."
    )


def test_a_bad_link_is_avoided_by_trees_with_both_times_and_the_caveat() -> None:
    found = advice(changed(4, {frozenset((0, 1)): 4.0}))
    assert found.way == "trees"
    assert 0 < found.trees < 0.75 * found.flat
    assert found.flat_level == found.trees_level == "int4"
    sentence = route_sentence(found)
    assert 'plan = "auto" would sum along trees: an exchange is predicted to take' in sentence
    assert "rank 0 sends to rank 1 at 4 Mbit/s" in sentence
    assert CAVEAT in sentence
    assert "by the time to the same loss" in sentence


def test_two_offices_sum_inside_each_first() -> None:
    slow = {frozenset((a, b)): 1.0 for a in (0, 1) for b in (2, 3)}
    found = advice(changed(4, slow, sites=True))
    assert found.way == "sites first"
    assert "each site first" in route_sentence(found)


def test_a_path_that_was_not_measured_allows_no_advice() -> None:
    hosts, reaches, flows = changed(4, {})
    found = advice((hosts, reaches, flows[1:]))
    assert found == RouteAdvice("not known", reason="not every path between two ranks was measured")
    assert "nothing can be said" in route_sentence(found)


@pytest.mark.parametrize("count", [2, 3])
def test_the_report_has_the_advice_in_text_and_json(count: int) -> None:
    report = concluded(healthy(count))
    assert report.routes is not None
    assert report.routes.way == "flat"
    again = msgspec.json.decode(msgspec.json.encode(report), type=DoctorReport)
    assert again.routes == report.routes
    assert 'plan = "auto" would sum between all ranks' in printed(report)
