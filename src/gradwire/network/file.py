"""File: reads a network from TOML. An unknown or impossible field is a ConfigError that names it.

hosts = 4                                  # or ["a", "b"], or [[host]] tables
[access]                                   # a switch with one access link per host
rate = "100mbit"
delay = "1ms"
up = { rate = "20mbit" }                   # values of one direction
[[link]]                                   # or single links between hosts and routers
between = ["a", "r1"]
[matrix]                                   # or a link for every pair
rtt_ms = [[0, 20], [20, 0]]
rate_mbit = [[0, 100], [50, 0]]
dilate = 4                                 # the lab stretches time by this factor
ipv6 = true                                # the lab's hosts have IPv6 addresses instead of IPv4 ones
[[change]]                                 # at = "10s", link = "a->b" | "a-b" | "*", new values
[[cross]]                                  # from, to, start, stop, flows, congestion, protocol, rate
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradwire.errors import ConfigError
from gradwire.network.dilate import checked_factor
from gradwire.network.fields import Fields, read_spec
from gradwire.network.link_spec import LinkSpec
from gradwire.network.nat import NAT_KINDS, TIMEOUT, Nat, parse_ports
from gradwire.network.network import (
    CHANGEABLE,
    SWITCH,
    Change,
    CrossTraffic,
    Host,
    Link,
    Network,
    as_hosts,
    both,
    host_names,
    matrix,
    star,
)
from gradwire.network.presets import PRESETS, preset
from gradwire.network.route import routes
from gradwire.units import Rate, Seconds, parse_rate, parse_seconds


def load_network(name: str, hosts: int | None = None) -> Network:
    """A preset by name, or a TOML file by path (anything with a slash or .toml); every host reaches every other."""
    if name in PRESETS:
        return preset(name, hosts)
    path = Path(name)
    if path.suffix != ".toml" and "/" not in name:
        raise ConfigError(f"net: unknown preset {name!r}; use one of {', '.join(PRESETS)}, or a .toml file")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"net: cannot read {name} ({error.strerror}); name a readable TOML file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"net: {name} is not valid TOML: {error}; save it as UTF-8") from error
    return parse_network(text, path.stem, path.parent, hosts)


def parse_network(text: str, name: str = "network", base: Path | None = None, hosts: int | None = None) -> Network:
    """Read TOML text; trace paths are relative to `base`; `hosts` replaces the file's number of hosts."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}: not valid TOML: {error}") from error
    fields = Fields(table, name, base or Path())
    machines = _hosts(fields, hosts)
    routers = fields.take("routers", _names, ())
    links = [*_access(fields, machines), *_matrix(fields, machines), *_links(fields)]
    if any(SWITCH in (link.source, link.target) for link in links) and SWITCH not in routers:
        routers = (*routers, SWITCH)
    network = Network(
        name=fields.take("name", str, name),
        about=fields.take("about", str, ""),
        hosts=machines,
        routers=routers,
        links=tuple(links),
        changes=tuple(_change(entry) for entry in fields.tables("change")),
        cross=tuple(_cross(entry) for entry in fields.tables("cross")),
        congestion=fields.take("congestion", str, "cubic"),
        overhead=fields.take("overhead", int, 38),
        seed=fields.take("seed", int, 1),
        dilate=_dilate(fields),
        ipv6=fields.take("ipv6", bool, False),
    )
    fields.finish()
    routes(network)
    return network


@contextmanager
def _inside(where: str) -> Iterator[None]:
    """Adds the table's position to the errors of types that check themselves."""
    try:
        yield
    except ConfigError as error:
        if str(error).startswith(where):
            raise
        raise ConfigError(f"{where}: {error}") from error


def _dilate(fields: Fields) -> float:
    value: float = fields.take("dilate", lambda given: given, 1.0)
    return checked_factor(value, f"{fields.where}.dilate")


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise TypeError(f"must be a list of names, but it is {value!r}")
    return tuple(value)


def _hosts(fields: Fields, count: int | None) -> tuple[Host, ...]:
    given = fields.take("hosts", lambda value: value, None)
    tables = fields.tables("host")
    if tables and given is not None:
        raise ConfigError(f"{fields.where}: give hosts = ... or [[host]] tables, not both")
    if count is not None and not isinstance(given, int):
        raise ConfigError(f"hosts: {fields.where} lists its hosts by name; edit the file to get {count} hosts")
    if tables:
        return tuple(_host(table) for table in tables)
    if isinstance(given, int) and not isinstance(given, bool):
        return as_hosts(host_names(count or given))
    if isinstance(given, list) and all(isinstance(name, str) for name in given):
        return as_hosts(given)
    raise ConfigError(f"{fields.where}: hosts: write a number, a list of names, or [[host]] tables")


def _host(fields: Fields) -> Host:
    host = Host(
        name=fields.take("name", str),
        rank=fields.take("rank", bool, True),
        congestion=fields.take("congestion", str, None),
        forwards=fields.take("forwards", bool, False),
        nat=_nat(fields),
    )
    fields.finish()
    return host


def _nat(host: Fields) -> Nat | None:
    fields = host.table("nat")
    if fields is None:
        return None
    with _inside(fields.where):
        nat = Nat(
            kind=fields.choice("kind", NAT_KINDS, "port-restricted"),
            timeout=fields.take("timeout", parse_seconds, TIMEOUT),
            forward=fields.take("forward", parse_ports, ()),
        )
    fields.finish()
    return nat


def _directions(fields: Fields, first: str, second: str) -> tuple[LinkSpec, LinkSpec]:
    """Values for both directions, with tables that override one of them."""
    one, other = fields.table(first), fields.table(second)
    values = fields.rest()
    specs = []
    for side in (one, other):
        merged = fields.child(values | (side.rest() if side else {}), side.where if side else fields.where)
        specs.append(read_spec(merged))
        merged.finish()
    return specs[0], specs[1]


def _access(fields: Fields, hosts: tuple[Host, ...]) -> tuple[Link, ...]:
    table = fields.table("access")
    if table is None:
        return ()
    up, down = _directions(table, "up", "down")
    return star(hosts, lambda host: (up, down))


def _links(fields: Fields) -> list[Link]:
    links: list[Link] = []
    for table in fields.tables("link"):
        ends = table.take("between", _names)
        if len(ends) != 2:
            raise ConfigError(f"{table.where}.between: must name two ends, but it names {len(ends)}")
        forward, backward = _directions(table, "forward", "backward")
        links += both(ends[0], ends[1], forward, backward)
    return links


def _matrix(fields: Fields, hosts: tuple[Host, ...]) -> tuple[Link, ...]:
    table = fields.table("matrix")
    if table is None:
        return ()
    rtt = table.take("rtt_ms", _square(len(hosts)))
    rate = table.take("rate_mbit", _square(len(hosts)))
    loss = table.take("loss", _square(len(hosts)), None)
    table.finish()

    def spec(i: int, j: int) -> LinkSpec:
        with _inside(f"{table.where}[{i}][{j}]"):
            return LinkSpec(
                rate=Rate.from_mbit(rate[i][j]),
                delay=Seconds(rtt[i][j] / 2000),
                loss=loss[i][j] if loss else 0.0,
            )

    return matrix([host.name for host in hosts], spec)


def _square(size: int) -> Callable[[Any], list[list[float]]]:
    def read(value: Any) -> list[list[float]]:
        rows = value if isinstance(value, list) else []
        if len(rows) != size or any(not isinstance(row, list) or len(row) != size for row in rows):
            raise TypeError(f"needs {size} rows of {size} numbers, one for each host")
        return [[float(cell) for cell in row] for row in rows]

    return read


def _change(fields: Fields) -> Change:
    with _inside(fields.where):
        change = Change(
            at=fields.take("at", parse_seconds),
            link=fields.take("link", str),
            **{name: fields.link_value(name) for name in ("rate", *CHANGEABLE)},
        )
    fields.finish()
    return change


def _cross(fields: Fields) -> CrossTraffic:
    with _inside(fields.where):
        flow = CrossTraffic(
            source=fields.take("from", str),
            target=fields.take("to", str),
            start=fields.take("start", parse_seconds, Seconds(0)),
            stop=fields.take("stop", parse_seconds, None),
            flows=fields.take("flows", int, 1),
            congestion=fields.take("congestion", str, None),
            protocol=fields.choice("protocol", ("tcp", "udp"), "tcp"),
            rate=fields.take("rate", parse_rate, None),
        )
    fields.finish()
    return flow
