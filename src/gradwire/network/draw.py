"""A picture of a network as SVG text: hosts on a circle, routers inside it, links with their values."""

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
    """SVG with one line for each pair of joined nodes; a full mesh leaves its values to the tooltips."""
    places = _places(network)
    cables = _cables(network)
    labels = len(cables) <= 24
    lines = [_cable(places, first, second, labels) for first, second in cables]
    nodes = [_node(network, name, *place) for name, place in places.items()]
    title = escape(network.name)
    about = escape(network.about)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">'
        f"<style>{_STYLE}</style>"
        f'<rect class="bg" width="{WIDTH}" height="{HEIGHT}"/>'
        f'<text x="24" y="34" style="font-size:20px;font-weight:600">{title}</text>'
        f'<text x="24" y="56">{about}</text>' + "".join(lines) + "".join(nodes) + "</svg>\n"
    )


def _places(network: Network) -> dict[str, tuple[float, float]]:
    """Hosts on a circle, those of one router side by side; each router between its hosts and the middle."""
    middle = (WIDTH / 2, HEIGHT / 2 + 30)
    home = {name: _home(network, name) for name in (host.name for host in network.hosts)}
    ring = sorted(home, key=lambda name: home[name])
    lone = len(network.routers) < 2
    turn = -math.pi / 2 if lone else math.pi - math.pi * (sum(home[name] == 0 for name in ring) - 1) / len(ring)
    angles = {name: turn + 2 * math.pi * index / len(ring) for index, name in enumerate(ring)}
    for index, router in enumerate(network.routers):
        near = [angles[name] for name in ring if home[name] == index]
        angles[router] = sum(near) / len(near) if near else 2 * math.pi * index / len(network.routers)

    def place(name: str) -> tuple[float, float]:
        radius = RADIUS if name in home else 0 if lone else 0.5 * RADIUS
        return middle[0] + 1.35 * radius * math.cos(angles[name]), middle[1] + radius * math.sin(angles[name])

    return {name: place(name) for name in (*home, *network.routers)}


def _home(network: Network, host: str) -> int:
    """The first router a host is joined to; hosts without one come after all others."""
    near = {link.target for link in network.links if link.source == host}
    return next((i for i, router in enumerate(network.routers) if router in near), len(network.routers))


def _cables(network: Network) -> list[tuple[Link, Link | None]]:
    by_ends = {(link.source, link.target): link for link in network.links}
    cables: list[tuple[Link, Link | None]] = []
    seen: set[tuple[str, str]] = set()
    for ends, link in by_ends.items():
        if ends in seen:
            continue
        back = by_ends.get(ends[::-1])
        seen |= {ends, ends[::-1]}
        cables.append((link, back))
    return cables


def _cable(places: dict[str, tuple[float, float]], link: Link, back: Link | None, labels: bool) -> str:
    (x1, y1), (x2, y2) = places[link.source], places[link.target]
    width = 1 if math.isinf(link.spec.mean_rate) else min(6.0, 0.8 + math.log10(1 + link.spec.mean_rate.mbit))
    tip = f"{link.name}: {link.spec}" + (f"\n{back.name}: {back.spec}" if back else "")
    line = (
        f'<line class="link" x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}" stroke-width="{width:.1f}">'
        f"<title>{escape(tip)}</title></line>"
    )
    if not labels:
        return line
    same = back is None or back.spec == link.spec
    texts = [str(link.spec)] if same else [f"{each.name}: {each.spec.mean_rate}" for each in (link, back) if each]
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
