"""`gradwire doctor`: runs under torchrun on all hosts, or in the lab; rank 0 prints findings and a recommendation."""

from __future__ import annotations

import click
import msgspec
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradwire.doctor.types import DoctorReport, GpuReport
from gradwire.level import Level
from gradwire.units import Bytes, Rate, Seconds, parse_bytes

COLORS = {"error": "bold red", "warning": "yellow", "info": "cyan"}
# A matrix of more ranks does not fit a terminal; the findings still name the bad paths.
LARGEST_MATRIX = 12


@click.command()
@click.option(
    "--model",
    default="resnet18",
    show_default=True,
    help="resnet18, resnet50, vgg16, gpt2, or millions of parameters such as 350M.",
)
@click.option("--compute-ms", type=click.FloatRange(0), help="Forward and backward of a step; default: as on a V100.")
@click.option(
    "--seconds", type=click.FloatRange(0.2, 30), default=1.5, show_default=True, help="Length of each transfer."
)
@click.option("--most", default="256MB", show_default=True, help="Size limit of each transfer.")
@click.option("--budget", type=click.FloatRange(1), default=90.0, show_default=True, help="Seconds for all transfers.")
@click.option(
    "--patience", type=click.FloatRange(1), default=60.0, show_default=True, help="Seconds to wait for a rank."
)
@click.option("--strict", is_flag=True, help="Exit with code 1 if an error was found.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON (rank 0).")
@click.option(
    "--gpu", is_flag=True, help="Check this host's GPU instead; without torchrun. Exit code 1 if a check fails."
)
def doctor(  # noqa: PLR0913, PLR0917 - a command's arguments are its options
    model: str,
    compute_ms: float | None,
    seconds: float,
    most: str,
    budget: float,
    patience: float,
    strict: bool,
    as_json: bool,
    gpu: bool,
) -> int:
    """Measure the network between the ranks, find set-up mistakes, predict step times, recommend a level.

    Runs on every host under torchrun, or in the lab: gradwire lab run --net lan100 -- python -m gradwire doctor.
    """
    if gpu:
        return check_gpu(as_json)
    # These import torch, which `--help` should not wait for.
    from gradwire.doctor.examine import ExaminationPlan, examine
    from gradwire.doctor.join import join_job
    from gradwire.doctor.predict import parse_model

    work = parse_model(model, compute_ms)
    plan = ExaminationPlan(seconds, parse_bytes(most, "--most"), budget)
    exchange = join_job(patience)
    report = examine(exchange, work, plan)
    if exchange.rank == 0:
        if as_json:
            click.echo(msgspec.json.encode(report).decode())
        else:
            Console().print(render(report))
    exchange.leave()
    return 1 if strict and any(finding.severity == "error" for finding in report.findings) else 0


def check_gpu(as_json: bool) -> int:
    """`--gpu`: checks in this process alone."""
    from gradwire.doctor.gpu import examine_gpu

    report = examine_gpu()
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    else:
        Console().print(render_gpu(report))
    return 0 if report.passed else 1


def render_gpu(report: GpuReport) -> RenderableType:
    versions = f"{report.gpu}, torch {report.torch}, CUDA {report.cuda}, NCCL {report.nccl}"
    lines: list[RenderableType] = [Text(versions, style="bold")]
    for check in report.checks:
        lines.append(
            Text(
                f"{'pass' if check.passed else 'FAIL'} {check.name}: {check.text}", style="" if check.passed else "red"
            )
        )
    rates = f"{report.to_host / 1e9:.1f} GB/s to the host, {report.to_device / 1e9:.1f} GB/s to the GPU"
    lines.append(Text(f"copies through pinned memory: {rates}; compute hides {report.hidden:.0%} of a copy"))
    if not report.passed:
        lines.append(Text("A check failed: please report this whole output, with --json if you can.", style="bold red"))
    return Group(*lines)


def render(report: DoctorReport) -> RenderableType:
    parts: list[RenderableType] = [_hosts(report)]
    if len(report.hosts) <= LARGEST_MATRIX:
        parts.append(_matrix(report))
    if report.partial:
        parts.append(Text("Not all pairs were measured; a larger --budget measures more.", style="dim"))
    parts += _sites(report)
    parts += _findings(report)
    if report.predictions:
        parts.append(_predictions(report))
    parts.append(Text(report.recommendation, style="bold"))
    if report.routes is not None:
        from gradwire.doctor.route_advice import route_sentence

        parts.append(Text(route_sentence(report.routes)))
    return Group(*parts)


def _hosts(report: DoctorReport) -> Table:
    table = Table(title="Hosts", title_justify="left")
    for column in ("rank", "host", "address", "interface", "MTU", "gloo address", "TCP", "torch"):
        table.add_column(column)
    for host in report.hosts:
        route = host.route_interface
        gloo = host.gloo_address or f"{host.gloo_setting}: missing"
        name, mtu = (route.name, str(route.mtu)) if route else ("?", "?")
        table.add_row(
            str(host.rank), host.host, host.route_address, name, mtu,
            Text(gloo, style="" if gloo == host.route_address else "bold red"), host.congestion, host.torch,
        )  # fmt: skip
    return table


def _matrix(report: DoctorReport) -> Table:
    """Row sends to column: rate, round trip, loss."""
    reaches = {(one.source, one.target): one for one in report.reaches}
    flows = {(one.source, one.target): one for one in report.flows}
    table = Table(title="From row to column: rate, round trip (UDP loss, TCP retransmissions)", title_justify="left")
    table.add_column("")
    for host in report.hosts:
        table.add_column(host.host, justify="right")
    for source in report.hosts:
        cells: list[str | Text] = [source.host]
        for target in report.hosts:
            pair = (source.rank, target.rank)
            cells.append("" if source is target else _cell(reaches.get(pair), flows.get(pair)))
        table.add_row(*cells)
    return table


def _cell(reach: object, flow: object) -> str | Text:
    from gradwire.doctor.types import FlowResult, Reach

    if isinstance(reach, Reach) and reach.problem:
        return Text("unreachable", style="bold red")
    rate = str(Rate(flow.rate)) if isinstance(flow, FlowResult) and flow.rate else "-"
    if not isinstance(reach, Reach) or reach.rtt is None:
        return rate
    retransmitted = flow.retransmitted if isinstance(flow, FlowResult) else 0.0
    lost = f"\n({reach.udp_loss or 0:.1%}, {retransmitted:.1%})" if reach.udp_loss or retransmitted > 0.001 else ""
    return f"{rate}\n{Seconds(reach.rtt)}{lost}"


def _sites(report: DoctorReport) -> list[RenderableType]:
    """The sites, and how to name them where nobody has."""
    from gradwire.doctor.site_report import proposes_sites
    from gradwire.sites.topology import VARIABLE

    if len(report.hosts) < 2:
        return []
    named = any(site.named for site in report.sites)
    source = VARIABLE if named else "measured round trips and rates"
    table = Table(title=f"Sites, by {source}", title_justify="left")
    for column in ("site", "ranks", "hosts", "longest round trip inside", "shortest to another site"):
        table.add_column(column)
    for site in report.sites:
        trips = ("-" if trip is None else str(Seconds(trip)) for trip in (site.inside, site.outside))
        table.add_row(site.name, ", ".join(map(str, site.ranks)), ", ".join(site.hosts), *trips)
    lines: list[RenderableType] = [table]
    if proposes_sites(report.sites):
        lines.append(Text("With a plan, ranks of one site sum among themselves first. To use these sites, set:"))
        lines += [Text(f"  export {VARIABLE}={site.name}   # on {', '.join(site.hosts)}") for site in report.sites]
    return lines


def _findings(report: DoctorReport) -> list[RenderableType]:
    if not report.findings:
        return [Text("No problems found.", style="green")]
    lines: list[RenderableType] = []
    for finding in report.findings:
        lines.append(Text(f"{finding.severity}: {finding.text}", style=COLORS[finding.severity]))
        lines.append(Text(f"  -> {finding.fix}"))
    return lines


def _predictions(report: DoctorReport) -> Table:
    title = (
        f"Predicted step of {report.model} ({report.parameters / 1e6:.1f} M parameters, "
        f"{Seconds(report.compute_seconds)} of compute)"
    )
    table = Table(title=title, title_justify="left")
    columns = ("level", "step", "wait for the network", "own transport", "more steps", "sent per rank")
    for column in columns:
        table.add_column(column, justify="left" if column == "level" else "right")
    for one in report.predictions:
        more = f"up to {one.price - 1:.0%}" if Level.parse(one.level).sparse else f"{one.price - 1:.1%}"
        table.add_row(
            one.level, str(Seconds(one.seconds)), str(Seconds(one.exposed)), str(Seconds(one.own_wire)), more,
            str(Bytes(one.wire_bytes)),
        )  # fmt: skip
    return table
