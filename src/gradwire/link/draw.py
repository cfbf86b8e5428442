"""A picture of a network as SVG text: nodes on a circle (a lone switch in the middle), links with their values."""

from __future__ import annotations

import math
from xml.sax.saxutils import escape

from gradwire.link.network import Link, Network

WIDTH, HEIGHT, RADIUS = 900, 680, 250
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#222}.small{font-size:10px;fill:#555}"
    ".host{fill:#e8f1fb;stroke:#2b6cb0}.idle{fill:#fdf2e0;stroke:#b7791f}.router{fill:#eee;stroke:#666}"
    ".link{stroke:#9aa5b1;fill:none}@media(prefers-color-scheme:dark){.bg{fill:#16181d}text{fill:#ddd}"
    ".small{fill:#aaa}.host{fill:#1c3550}.idle{fill:#4a3a18}.router{fill:#333}}"
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
        f'<rect class="bg" width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>'
        f'<text x="24" y="34" style="font-size:20px;font-weight:600">{title}</text>'
        f'<text x="24" y="56">{about}</text>' + "".join(lines) + "".join(nodes) + "</svg>\n"
    )


def _places(network: Network) -> dict[str, tuple[float, float]]:
    center = (WIDTH / 2, HEIGHT / 2 + 30)
    names = [host.name for host in network.hosts]
    inner = list(network.routers)
    places: dict[str, tuple[float, float]] = {}
    for ring, radius in ((names, RADIUS), (inner, 0 if len(inner) == 1 else RADIUS * 0.35)):
        for index, name in enumerate(ring):
            angle = 2 * math.pi * index / len(ring) + (math.pi if ring is inner else -math.pi / 2)
            places[name] = (center[0] + 1.35 * radius * math.cos(angle), center[1] + radius * math.sin(angle))
    return places


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
    rates = [link.spec] if back is None or back.spec == link.spec else [link.spec, back.spec]
    x, y = (x1 + x2) / 2, (y1 + y2) / 2
    text = "".join(
        f'<text class="small" x="{x:.0f}" y="{y + 12 * row:.0f}" text-anchor="middle">'
        f"{escape(str(spec) if len(rates) == 1 else ('→ ' if row == 0 else '← ') + str(spec.mean_rate))}</text>"
        for row, spec in enumerate(rates)
    )
    return line + text


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
