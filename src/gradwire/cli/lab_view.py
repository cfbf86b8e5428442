"""Lab view: draws a network as a tree or a matrix, and measurements as a table, for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.box import SIMPLE
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from gradwire.lab.measure import Measurement
from gradwire.network import CrossTraffic, Host, Link, Network


def draw_network(network: Network) -> RenderableType:
    """A tree of routers and their neighbours; a full mesh as matrices of delay and rate."""
    parts: list[RenderableType] = [Text(network.name, style="bold"), Text(network.about or "a custom network")]
    if network.dilate != 1:
        parts.append(Text(f"the lab stretches its time by {network.dilate:g}; values here are undilated"))
    parts.append(_mesh(network) if _is_mesh(network) else _tree(network))
    if network.changes:
        parts.append(_changes(network))
    parts += [Text(_flow(flow)) for flow in network.cross]
    return Group(*parts)


def _flow(flow: CrossTraffic) -> str:
    stop = f"{float(flow.stop):g} s" if flow.stop is not None else "the end"
    count = f"{flow.flows} {flow.protocol.upper()} flow" + ("s" if flow.flows > 1 else "")
    return f"  cross traffic: {count} {flow.source} → {flow.target}, {float(flow.start):g} s to {stop}"


def _is_mesh(network: Network) -> bool:
    return not network.routers and len(network.links) == len(network.hosts) * (len(network.hosts) - 1) > 2


def _label(network: Network, name: str) -> str:
    ranks = [host.name for host in network.ranks]
    host: Host | None = next((host for host in network.hosts if host.name == name), None)
    if host is None:
        return f"[bold]{name}[/]"
    role = f"rank {ranks.index(name)}" if name in ranks else "traffic only"
    nat = f", behind a {host.nat.kind} NAT" if host.nat else ""
    return f"[cyan]{name}[/] [dim]{role}, {network.congestion_of(host)}{nat}[/]"


def _tree(network: Network) -> Tree:
    """Each connected pair once, from the routers outwards."""
    by_ends = {(link.source, link.target): link for link in network.links}
    seen: set[frozenset[str]] = set()
    tree = Tree("", hide_root=True, guide_style="dim")
    for node in (*network.routers, *(host.name for host in network.hosts)):
        near = [other for (source, other) in by_ends if source == node and frozenset((node, other)) not in seen]
        if not near:
            continue
        branch = tree.add(_label(network, node))
        for other in near:
            seen.add(frozenset((node, other)))
            branch.add(f"{_label(network, other)}  {_pair(by_ends[node, other], by_ends.get((other, node)))}")
    return tree


def _pair(forward: Link, backward: Link | None) -> str:
    if backward is not None and backward.spec == forward.spec:
        return f"═ {forward.spec}"
    return f"→ {forward.spec}" + (f"   ← {backward.spec}" if backward else "   (one way)")


def _mesh(network: Network) -> Group:
    """Two tables: ten regions with both values in one table do not fit into 80 columns."""
    specs = {(link.source, link.target): link.spec for link in network.links}
    delay = _matrix(network, "one-way delay, ms", lambda a, b: f"{specs[a, b].delay * 1e3:.3g}")
    rate = _matrix(network, "rate, Mbit/s", lambda a, b: f"{specs[a, b].mean_rate.mbit:.4g}")
    return Group(delay, rate)


def _matrix(network: Network, title: str, cell: Callable[[str, str], str]) -> Table:
    names = [host.name for host in network.hosts]
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("from \\ to", no_wrap=True)
    for index in range(len(names)):
        table.add_column(str(index), justify="right", no_wrap=True)
    for index, source in enumerate(names):
        cells = [cell(source, target) if target != source else "·" for target in names]
        table.add_row(f"{index} {source}", *cells)
    return table


def _changes(network: Network) -> Text:
    times = sorted({float(change.at) for change in network.changes})
    lines = [f"  changes at {', '.join(f'{at:g}' for at in times[:8])}{' ...' if len(times) > 8 else ''} s"]
    if len(network.changes) <= 8:
        for change in network.changes:
            new = [str(change.rate)] if change.rate is not None else []
            new += [f"delay {change.delay}"] if change.delay is not None else []
            new += [f"loss {change.loss:.2%}"] if change.loss is not None else []
            lines.append(f"    {float(change.at):6g} s  {change.link}: {', '.join(new)}")
    return Text("\n".join(lines))


def measurement_table(rows: Sequence[Measurement]) -> Table:
    table = Table(pad_edge=False)
    for name in ("from", "to"):
        table.add_column(name)
    for name in ("RTT ms", "measured", "TCP Mbit/s", "measured", "loss", "measured"):
        table.add_column(name, justify="right")
    for row in rows:
        rtt = _mark(f"{row.rtt_ms:.2f}", row.rtt_good)
        rate = _mark(f"{row.mbit:.1f}", row.rate_good)
        wanted_loss = f"{row.wanted_loss:.2%}" if row.wanted_loss else "0"
        loss = _mark("" if row.loss is None else f"{row.loss:.2%}", row.loss_good)
        table.add_row(
            row.source, row.target, f"{row.wanted_rtt_ms:.2f}", rtt, f"{row.wanted_mbit:.1f}", rate, wanted_loss, loss
        )
    if any(row.rate_good is None for row in rows):
        table.caption = "no mark: TCP alone does not fill a link that is lossy, changing or shared"
    return table


def _mark(text: str, good: bool | None) -> Text:
    if good is None:
        return Text(text)
    return Text(f"{text} ✓", style="green") if good else Text(f"{text} ✗", style="bold red")


def show(value: RenderableType) -> None:
    Console().print(value, soft_wrap=not isinstance(value, Table))
