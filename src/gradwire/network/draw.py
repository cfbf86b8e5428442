"""Draw: a network as SVG text, with hosts on a circle, routers inside it, and links with their values."""

from __future__ import annotations

import math
from xml.sax.saxutils import escape

from gradwire.network.network import Link, Network

WIDTH, HEIGHT, RADIUS = 900, 680, 250
_STYLE = (
    ".bg{fill:#fff}text{font:13px system-ui,sans-serif;fill:#222}.small{font-size:10px;fill:#555}"
    ".host{fill:#e8f1fb;stroke:#2b6cb0}.idle{fill:#fdf2e0;stroke:#b7791f}.router{fill:#eee;stroke:#666}"
    ".link{stroke:#9aa5b1;fill:none}.tag{paint-order:stroke;stroke:#fff;stroke-width:4px}"
    "@media(prefers-color-scheme:dark){.bg{fill:#16181d}text{fill:#ddd}.small{fill:#aaa}.tag{stroke:#16181d}"
    ".host{fill:#1c3550}.idle{fill:#4a3a18}.router{fill:#333}}"
)


def to_svg(network: Network) -> str:
    """SVG with one line per connected pair of nodes; in a dense network only tooltips show the values."""
    positions = _positions(network)
    duplex_links = _duplex_links(network)
    labels = len(duplex_links) <= 24
    lines = [_line(positions, first, second, labels) for first, second in duplex_links]
    nodes = [_node(network, name, *position) for name, position in positions.items()]
    title = escape(network.name, {'"': "&quot;"})  # also the value of an attribute
    about = escape(network.about)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">'
        f"<style>{_STYLE}</style>"
        f'<rect class="bg" width="{WIDTH}" height="{HEIGHT}"/>'
        f'<text x="24" y="34" style="font-size:20px;font-weight:600">{title}</text>'
        f'<text x="24" y="56">{about}</text>' + "".join(lines) + "".join(nodes) + "</svg>\n"
    )


def _positions(network: Network) -> dict[str, tuple[float, float]]:
    """Hosts on a circle, those of one router next to each other; each router between its hosts and the center."""
    middle = (WIDTH / 2, HEIGHT / 2 + 30)
    router_of = {name: _router_of(network, name) for name in (host.name for host in network.hosts)}
    ordered = sorted(router_of, key=lambda name: router_of[name])
    central = len(network.routers) < 2
    first = sum(index == 0 for index in router_of.values())
    turn = -math.pi / 2 if central else math.pi - math.pi * (first - 1) / len(ordered)
    angles = {name: turn + 2 * math.pi * index / len(ordered) for index, name in enumerate(ordered)}
    for index, router in enumerate(network.routers):
        near = [angles[name] for name in ordered if router_of[name] == index]
        angles[router] = sum(near) / len(near) if near else 2 * math.pi * index / len(network.routers)

    def position(name: str) -> tuple[float, float]:
        radius = RADIUS if name in router_of else 0 if central else 0.5 * RADIUS
        return middle[0] + 1.35 * radius * math.cos(angles[name]), middle[1] + radius * math.sin(angles[name])

    return {name: position(name) for name in (*router_of, *network.routers)}


def _router_of(network: Network, host: str) -> int:
    """The first router a host is linked to; hosts without a router come last."""
    near = {link.target for link in network.links if link.source == host}
    return next((i for i, router in enumerate(network.routers) if router in near), len(network.routers))


def _duplex_links(network: Network) -> list[tuple[Link, Link | None]]:
    by_ends = {(link.source, link.target): link for link in network.links}
    duplex_links: list[tuple[Link, Link | None]] = []
    seen: set[tuple[str, str]] = set()
    for ends, link in by_ends.items():
        if ends in seen:
            continue
        reverse = by_ends.get(ends[::-1])
        seen |= {ends, ends[::-1]}
        duplex_links.append((link, reverse))
    return duplex_links


def _line(positions: dict[str, tuple[float, float]], link: Link, reverse: Link | None, labels: bool) -> str:
    (x1, y1), (x2, y2) = positions[link.source], positions[link.target]
    width = 1 if math.isinf(link.spec.mean_rate) else min(6.0, 0.8 + math.log10(1 + link.spec.mean_rate.mbit))
    tip = f"{link.name}: {link.spec}" + (f"\n{reverse.name}: {reverse.spec}" if reverse else "")
    line = (
        f'<line class="link" x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}" stroke-width="{width:.1f}">'
        f"<title>{escape(tip)}</title></line>"
    )
    if not labels:
        return line
    same = reverse is None or reverse.spec == link.spec
    texts = [str(link.spec)] if same else [f"{each.name}: {each.spec.mean_rate}" for each in (link, reverse) if each]
    x, y = (x1 + x2) / 2, (y1 + y2) / 2
    return line + "".join(
        f'<text class="small tag" x="{x:.0f}" y="{y + 12 * row:.0f}" text-anchor="middle">'
        f"{escape(text.replace('->', '→'))}</text>"
        for row, text in enumerate(texts)
    )


def _node(network: Network, name: str, x: float, y: float) -> str:
    ranks = [host.name for host in network.ranks]
    kind = "router" if name in network.routers else "host" if name in ranks else "idle"
    note = f"rank {ranks.index(name)}" if name in ranks else kind if kind == "router" else "traffic"
    half = max(34, 5 * len(name) + 8)
    return (
        f'<rect class="{kind}" x="{x - half:.0f}" y="{y - 20:.0f}" width="{2 * half}" height="40" rx="8"/>'
        f'<text x="{x:.0f}" y="{y - 1:.0f}" text-anchor="middle">{escape(name)}</text>'
        f'<text class="small" x="{x:.0f}" y="{y + 13:.0f}" text-anchor="middle">{note}</text>'
    )
