"""Networks: shape, routes, changes; impossible ones are refused with the part that is wrong."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import networkx
import pytest

from gradwire.errors import ConfigError
from gradwire.network import PRESETS, Change, CrossTraffic, Host, Link, LinkSpec, Network, preset, routes, to_svg
from gradwire.network.network import as_hosts, both
from gradwire.units import Rate, Seconds

FAST = LinkSpec(Rate.from_mbit(100), Seconds(0.001))


def pair(**values: object) -> Network:
    return Network("pair", as_hosts(["a", "b"]), both("a", "b", FAST), **values)  # type: ignore[arg-type]


def test_a_name_with_quotes_and_brackets_is_drawn_as_well_formed_xml() -> None:
    drawn = ElementTree.fromstring(to_svg(replace(pair(), name='the "fast" <one>')))
    assert drawn.attrib["aria-label"] == 'the "fast" <one>'


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_connects_every_pair_and_can_be_drawn(name: str) -> None:
    network = preset(name)
    ways = routes(network)
    assert len(ways) == len(network.hosts) * (len(network.hosts) - 1)
    assert network.about.endswith(".")
    assert to_svg(network).startswith("<svg")
    for (source, target), way in ways.items():
        links = [network.links[index] for index in way]
        assert links[0].source == source
        assert links[-1].target == target
        assert all(a.target == b.source for a, b in pairwise(links))


def test_presets_take_other_sizes_unless_their_sites_are_real() -> None:
    assert len(preset("lan100", 16).ranks) == 16
    with pytest.raises(ConfigError, match="geo-aws10 always has 10 hosts, but"):
        preset("geo-aws10", 4)
    with pytest.raises(ConfigError, match="unknown preset 'lan99'"):
        preset("lan99")


def test_routes_are_shortest_by_delay_as_networkx_finds_them() -> None:
    network = preset("netstorm9")
    graph = networkx.DiGraph()
    for link in network.links:
        graph.add_edge(link.source, link.target, weight=float(link.spec.delay) + 1e-6)
    ways = routes(network)
    for (source, target), way in ways.items():
        cost = sum(float(network.links[i].spec.delay) + 1e-6 for i in way)
        assert cost == pytest.approx(networkx.dijkstra_path_length(graph, source, target))


def test_hosts_do_not_forward_unless_they_say_so() -> None:
    chain = (*both("a", "b", FAST), *both("b", "c", FAST))
    with pytest.raises(ConfigError, match="'c' cannot be reached from 'a'"):
        routes(Network("chain", as_hosts("abc"), chain))
    way = routes(Network("chain", as_hosts("abc", forwards=True), chain))["a", "c"]
    assert len(way) == 2


def test_a_one_way_link_leaves_no_return_route() -> None:
    with pytest.raises(ConfigError, match="'a' cannot be reached from 'b'"):
        routes(Network("x", as_hosts("ab"), (Link("a", "b", FAST),)))


def test_names_links_and_ends_are_checked() -> None:
    with pytest.raises(ConfigError, match="more than one"):
        Network("x", as_hosts("aa"), ())
    with pytest.raises(ConfigError, match="no host or router 'z'"):
        Network("x", as_hosts("ab"), both("a", "z", FAST))
    with pytest.raises(ConfigError, match="given twice"):
        Network("x", as_hosts("ab"), (*both("a", "b", FAST), *both("a", "b", FAST)))
    with pytest.raises(ConfigError, match="both ends are the same node"):
        Network("x", as_hosts("ab"), (Link("a", "a", FAST),))
    with pytest.raises(ConfigError, match="use letters"):
        Network("x", as_hosts(["a b"]), ())
    with pytest.raises(ConfigError, match="at least one host"):
        Network("x", (Host("t", rank=False),), ())


def test_changes_match_one_direction_both_or_all() -> None:
    link, back = both("a", "b", FAST)
    at = Seconds(1)
    assert Change(at, "a->b", Rate(1)).matches(link)
    assert not Change(at, "a->b", Rate(1)).matches(back)
    assert Change(at, "b-a", Rate(1)).matches(link)
    assert Change(at, "*", Rate(1)).matches(back)
    assert Change(at, "*->a", Rate(1)).matches(back)
    assert not Change(at, "*->a", Rate(1)).matches(link)


def test_a_change_that_matches_nothing_or_is_impossible_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"matches no link; the links are a->b, b->a"):
        pair(changes=(Change(Seconds(1), "a->c", Rate(1)),))
    with pytest.raises(ConfigError, match="rate"):
        Change(Seconds(1), "*", rate=Rate(0))
    with pytest.raises(ConfigError, match=r"change.at: must not be negative"):
        Change(Seconds(-1), "*", rate=Rate(1))


def test_cross_traffic_is_checked() -> None:
    with pytest.raises(ConfigError, match=r"cross.to: there is no host 'z'"):
        pair(cross=(CrossTraffic("a", "z"),))
    with pytest.raises(ConfigError, match=r"cross.flows"):
        CrossTraffic("a", "b", flows=0)
    with pytest.raises(ConfigError, match=r"cross.start: must not be negative, but it is -1 s"):
        CrossTraffic("a", "b", Seconds(-1))
    with pytest.raises(ConfigError, match=r"cross.stop: must be after cross.start \(5 s\), but it is 5 s"):
        CrossTraffic("a", "b", Seconds(5), Seconds(5))
    with pytest.raises(ConfigError, match=r"cross.rate"):
        CrossTraffic("a", "b", protocol="udp")


def test_geo_aws10_has_the_measured_values() -> None:
    network = preset("geo-aws10")
    specs = {link.name: link.spec for link in network.links}
    assert specs["tokyo->frankfurt"].delay == pytest.approx(0.1115)
    assert specs["frankfurt->tokyo"].rate.mbit == pytest.approx(360)
