"""Presets: the networks included in gradwire, each a function of the number of hosts, with a short description.

Sources: netsense-* and degrading/fluctuating follow NetSenseML's settings, netstorm9 NetStorm's 9 sites, 13 links and
20..155 Mbit/s; geo-aws10 is measured data (data/aws10.csv, MIT licence included, from the DT-FM project). The rest
are typical values; `lte` and `starlink-like` are synthetic, with the parameters given here.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.resources import files

from gradwire.errors import ConfigError
from gradwire.network.link_spec import Burst, LinkSpec
from gradwire.network.network import SWITCH, Change, CrossTraffic, Host, Link, Network, as_hosts, both, host_names
from gradwire.network.network import matrix as full_matrix
from gradwire.network.network import star as star_links
from gradwire.network.rate_trace import RateTrace, synthetic_trace
from gradwire.units import Bytes, Rate, Seconds, parse_bytes, parse_rate, parse_seconds


@dataclass(frozen=True, slots=True)
class Preset:
    """A preset; `fixed` networks have exactly `hosts` hosts, for the others `hosts` is the default."""

    about: str
    hosts: int
    build: Callable[[int], Network]
    fixed: bool = False


def preset(name: str, hosts: int | None = None) -> Network:
    """A preset with its default number of hosts, or another number if it is not fixed."""
    if name not in PRESETS:
        raise ConfigError(f"net: unknown preset {name!r}; use one of {', '.join(PRESETS)}")
    entry = PRESETS[name]
    if hosts is not None and hosts != entry.hosts and entry.fixed:
        raise ConfigError(f"hosts: {name} always has {entry.hosts} hosts, but {hosts} were requested")
    if hosts is not None and not 2 <= hosts <= 200:
        raise ConfigError(f"hosts: must be in 2..200, but it is {hosts}")
    return replace(entry.build(hosts or entry.hosts), name=name, about=entry.about)


def _spec(rate: str, delay: str = "0ms", queue: str | None = None, loss: float = 0.0, jitter: str = "0ms") -> LinkSpec:
    size: Bytes | None = parse_bytes(queue) if queue else None
    return LinkSpec(parse_rate(rate), parse_seconds(delay), parse_seconds(jitter), loss, queue=size)


def _star(count: int, access: LinkSpec | tuple[LinkSpec, LinkSpec], changes: tuple[Change, ...] = ()) -> Network:
    hosts = as_hosts(host_names(count))
    pair = (access, access) if isinstance(access, LinkSpec) else access
    return Network("", hosts, star_links(hosts, lambda _: pair), (SWITCH,), changes)


def _lan(rate: str, queue: str, delay: str = "50us") -> Callable[[int], Network]:
    return lambda count: _star(count, _spec(rate, delay, queue))


def _degrading(count: int) -> Network:
    steps = ((20, 500), (40, 200), (60, 100), (80, 50))
    changes = tuple(Change(Seconds(at), "*", Rate.from_mbit(mbit)) for at, mbit in steps)
    return _star(count, _spec("800mbit", "250us", "512KiB"), changes)


def _two_sides(count: int, lan: LinkSpec, trunk: LinkSpec, extra: tuple[tuple[Host, str], ...] = ()) -> Network:
    """Half of the hosts on each side of one trunk link; `extra` hosts run no rank."""
    hosts = as_hosts(host_names(count))
    sides = [(host, "left" if index < (count + 1) // 2 else "right") for index, host in enumerate(hosts)]
    links: list[Link] = list(both("left", "right", trunk))
    for host, side in (*sides, *extra):
        links += both(host.name, side, lan)
    return Network("", hosts + tuple(host for host, _ in extra), tuple(links), ("left", "right"))


def _fluctuating(count: int) -> Network:
    """1 to 50 competing streams, changed every 15 s, as in NetSenseML's third setting."""
    extra = ((Host("x0", rank=False), "left"), (Host("x1", rank=False), "right"))
    network = _two_sides(count, _spec("1gbit", "100us", "512KiB"), _spec("800mbit", "500us", "2MB"), extra)
    cross = []
    for index, flows in enumerate((1, 10, 50, 5, 25, 2)):
        source, target = ("x0", "x1") if index % 2 == 0 else ("x1", "x0")
        start = 15.0 * index
        cross.append(CrossTraffic(source, target, Seconds(start), Seconds(start + 15), flows, "cubic"))
    return replace(network, cross=tuple(cross))


def _wan_us_eu(count: int) -> Network:
    trunk = _spec("300mbit", "40ms", "3MB", loss=0.0001, jitter="300us")
    return _two_sides(count, _spec("1gbit", "100us", "512KiB"), trunk)


def _two_offices(count: int) -> Network:
    """Each office has a fast local network and one line, slower up than down, that all its hosts share."""
    hosts, lan = as_hosts(host_names(count)), _spec("1gbit", "100us", "512KiB")
    up, down = _spec("2mbit", "7500us", "64KiB"), _spec("20mbit", "7500us", "256KiB")
    links: list[Link] = []
    for index, host in enumerate(hosts):
        links += both(host.name, "left" if index < (count + 1) // 2 else "right", lan)
    for office in ("left", "right"):
        links += both(office, "provider", up, down)
    return Network("", hosts, tuple(links), ("left", "right", "provider"))


def _four_regions(_: int) -> Network:
    """A link between every two regions; that between the first two is bad."""
    good, bad = _spec("100mbit", "20ms", "1MB"), _spec("4mbit", "20ms", "256KiB")
    hosts = as_hosts([f"r{i}" for i in range(4)])
    links = full_matrix([host.name for host in hosts], lambda i, j: bad if {i, j} == {0, 1} else good)
    return Network("", hosts, links)


def _campus_wifi(count: int) -> Network:
    """Hosts on a switch, the last one by radio."""
    wired, radio = _spec("1gbit", "100us", "512KiB"), _spec("30mbit", "2ms", "256KiB", loss=0.001)
    hosts = as_hosts(host_names(count))
    links = star_links(hosts, lambda host: (radio, radio) if host is hosts[-1] else (wired, wired))
    return Network("", hosts, links, (SWITCH,))


def _geo_aws10(_: int) -> Network:
    rows = list(csv.DictReader(files("gradwire.network").joinpath("data/aws10.csv").read_text().splitlines()))
    names = list(dict.fromkeys(name for row in rows for name in (row["region_a"], row["region_b"])))
    table = {frozenset((row["region_a"], row["region_b"])): row for row in rows}

    def spec(i: int, j: int) -> LinkSpec:
        row = table[frozenset((names[i], names[j]))]
        rate = Rate.from_mbit(float(row["bandwidth_gbps"]) * 1000)
        return LinkSpec(rate, Seconds(float(row["rtt_ms"]) / 2000))

    hosts = [name.lower() for name in names]
    return Network("", as_hosts(hosts), full_matrix(hosts, spec))


# The testbed of NetStorm: 9 sites, 13 links.
NETSTORM_LINKS = (
    (1, 2),
    (1, 3),
    (2, 3),
    (2, 5),
    (3, 4),
    (4, 5),
    (4, 6),
    (5, 7),
    (6, 7),
    (6, 8),
    (6, 9),
    (7, 8),
    (8, 9),
)
_STORM_REDRAW, _STORM_ROUNDS = 180.0, 20


def _netstorm9(_: int, dynamic: bool = False) -> Network:
    """Each direction 20..155 Mbit/s, drawn once (seed 9); 5 ms per hop, which the paper does not specify."""
    rng = random.Random(9)

    def draw() -> Rate:
        return Rate.from_mbit(round(rng.uniform(20, 155)))

    links: list[Link] = []
    for a, b in NETSTORM_LINKS:
        links += both(f"s{a}", f"s{b}", LinkSpec(draw(), Seconds(0.005)), LinkSpec(draw(), Seconds(0.005)))
    changes = tuple(
        Change(Seconds(_STORM_REDRAW * turn), link.name, draw())
        for turn in range(1, _STORM_ROUNDS if dynamic else 0)
        for link in links
    )
    return Network("", as_hosts([f"s{i}" for i in range(1, 10)], forwards=True), tuple(links), (), changes)


def _lossy_wifi(count: int) -> Network:
    # One packet in 400 starts a burst of 5 packets on average, half of which are lost: 0.6 % in total.
    radio = LinkSpec(
        Rate.from_mbit(100), Seconds(0.002), Seconds(0.001), 0.001, Burst(0.0025, 0.2, 0.5), parse_bytes("256KiB")
    )
    return _star(count, radio)


def _starlink_like(count: int) -> Network:
    """A new satellite every 15 s with a new rate, log-normal around 120 down and 15 up; 0.5 % loss in bursts."""

    def steps(mean: float, seed: int) -> RateTrace:
        rng = random.Random(seed)
        rates = tuple(Rate.from_mbit(mean * min(2.0, rng.lognormvariate(-0.06, 0.35))) for _ in range(20))
        return RateTrace(tuple(15.0 * i for i in range(20)), rates, 300.0)

    def access(host: Host) -> tuple[LinkSpec, LinkSpec]:
        seed = int(host.name[1:])
        burst = Burst(0.0005, 0.1)
        radio = LinkSpec(delay=Seconds(0.0125), jitter=Seconds(0.003), burst=burst, queue=parse_bytes("1MB"))
        return replace(radio, trace=steps(15, 2 * seed)), replace(radio, trace=steps(120, 2 * seed + 1))

    hosts = as_hosts(host_names(count))
    return Network("", hosts, star_links(hosts, access), (SWITCH,))


def _lte(count: int) -> Network:
    def access(host: Host) -> tuple[LinkSpec, LinkSpec]:
        seed = int(host.name[1:])
        radio = LinkSpec(delay=Seconds(0.02), jitter=Seconds(0.004), queue=parse_bytes("1MB"))
        up = synthetic_trace(mean_mbit=10, spread=0.5, memory=2.0, seed=2 * seed)
        return replace(radio, trace=up), replace(radio, trace=synthetic_trace(30, 0.5, 2.0, 2 * seed + 1))

    hosts = as_hosts(host_names(count))
    return Network("", hosts, star_links(hosts, access), (SWITCH,))


PRESETS: dict[str, Preset] = {
    "lan1g": Preset("Gigabit Ethernet: 1 Gbit/s to one switch, 0.2 ms round trip.", 4, _lan("1gbit", "512KiB")),
    "lan100": Preset("Fast Ethernet: 100 Mbit/s to one switch, 0.2 ms round trip.", 4, _lan("100mbit", "256KiB")),
    "office200": Preset(
        "An office network: 200 Mbit/s to each host, 2 ms round trip.", 4, _lan("200mbit", "256KiB", "500us")
    ),
    "netsense-200": Preset(
        "NetSenseML's static setting at 200 Mbit/s, 8 workers.", 8, _lan("200mbit", "512KiB", "250us")
    ),
    "netsense-500": Preset(
        "NetSenseML's static setting at 500 Mbit/s, 8 workers.", 8, _lan("500mbit", "512KiB", "250us")
    ),
    "netsense-800": Preset(
        "NetSenseML's static setting at 800 Mbit/s, 8 workers.", 8, _lan("800mbit", "512KiB", "250us")
    ),
    "degrading": Preset(
        "8 workers; all links drop from 800 to 500, 200, 100 and 50 Mbit/s, one step every 20 s.", 8, _degrading
    ),
    "fluctuating": Preset(
        "8 workers across an 800 Mbit/s trunk, shared with 1 to 50 competing TCP streams.", 8, _fluctuating
    ),
    "wan-us-eu": Preset("Two sites, US and EU: 300 Mbit/s between them, 80 ms round trip, 0.01 % loss.", 8, _wan_us_eu),
    "two-offices": Preset(
        "Two offices; each has one line of 20 Mbit/s down and 2 up for all its hosts, 30 ms round trip.",
        4,
        _two_offices,
    ),
    "four-regions": Preset(
        "Four regions, 100 Mbit/s and 40 ms between every two, but 4 Mbit/s between the first two.",
        4,
        _four_regions,
        fixed=True,
    ),
    "campus-wifi": Preset(
        "Hosts on a Gigabit switch, the last one by 30 Mbit/s of Wi-Fi with 0.1 % loss.", 6, _campus_wifi
    ),
    "geo-aws10": Preset(
        "Ten cloud regions, measured round trips and bandwidths for every pair.", 10, _geo_aws10, fixed=True
    ),
    "netstorm9": Preset(
        "NetStorm's nine sites on thirteen cables, each direction 20 to 155 Mbit/s.", 9, _netstorm9, fixed=True
    ),
    "netstorm9-dynamic": Preset(
        "NetStorm's nine sites, all rates redrawn every 180 s.", 9, lambda n: _netstorm9(n, True), fixed=True
    ),
    "lossy-wifi": Preset(
        "100 Mbit/s Wi-Fi: losses in bursts, 0.7 % on each of two hops, 8 ms round trip with jitter.", 4, _lossy_wifi
    ),
    "starlink-like": Preset(
        "Satellite access: about 120 down and 15 Mbit/s up, 50 ms, a new satellite every 15 s.", 4, _starlink_like
    ),
    "lte": Preset("Mobile access: 30 Mbit/s down, 10 up on average, 50 % deviation, 80 ms round trip.", 4, _lte),
    "incast8": Preset(
        "Eight senders and one receiver (rank 0) on 1 Gbit/s links with small 128 KiB queues.",
        9,
        _lan("1gbit", "128KiB", "50us"),
    ),
}
