"""`gradwire lab`: runs any torchrun script in an emulated network, shows and checks networks."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import click
import msgspec

from gradwire.cli.lab_live import LabView, note
from gradwire.cli.output import check_writable, write
from gradwire.cli.signals import leave_cleanly
from gradwire.cli.suggesting_group import SuggestingGroup
from gradwire.errors import GradwireError
from gradwire.lab import EmulatorStats, Lab, RunResult
from gradwire.lab.interrupts import Interrupts
from gradwire.lab.lab import MODES, Mode
from gradwire.lab.machine_load import disturbance
from gradwire.network import PRESETS, Network, load_network, to_svg
from gradwire.units import Bytes

_COLORS = ("cyan", "magenta", "green", "yellow", "blue", "bright_red", "bright_cyan", "bright_magenta", "bright_green")


class LabCommand(click.Command):
    """An error in the arguments, the file or the machine becomes one line and exit code 2."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except GradwireError as error:
            raise LabFailure(str(error)) from error


class LabFailure(click.ClickException):
    exit_code = 2

    def show(self, file: object = None) -> None:
        click.echo(f"gradwire lab: {self.message.removeprefix('lab: ')}", err=True)


@click.group(cls=SuggestingGroup)
def lab() -> None:
    """Emulate a network on this machine: hosts in namespaces, links with rate, delay, loss and queues."""


def network_options(command: click.Command) -> click.Command:
    command.params.insert(0, click.Option(["--hosts"], type=int, help="Number of hosts, unless the network fixes it."))
    command.params.insert(
        0, click.Option(["--net"], default="lan100", show_default=True, help="A preset, or a TOML network file.")
    )
    return command


def dilate_option(command: click.Command) -> click.Command:
    text = "Stretch time by this factor: eight ranks on two cores need 4. Times are given and reported undilated."
    command.params.insert(0, click.Option(["--dilate"], type=float, metavar="FACTOR", help=text))
    return command


def ipv6_option(command: click.Command) -> click.Command:
    text = "Hosts have IPv6 addresses, and no IPv4 address."
    command.params.insert(0, click.Option(["--ipv6"], is_flag=True, help=text))
    return command


@network_options
@dilate_option
@ipv6_option
@lab.command(cls=LabCommand, context_settings={"allow_interspersed_args": False})
@click.option("--congestion", help="TCP congestion control of every host: cubic, bbr, reno.")
@click.option("--timeout", type=float, help="End all ranks after this many seconds (exit code 124).")
@click.option("--port", type=click.IntRange(1, 65535), help="MASTER_PORT; default: 29500, in loopback mode a free one.")
@click.option(
    "--mode", type=click.Choice(MODES), default="auto", show_default=True, help="loopback needs no privileges."
)
@click.option("--seed", type=click.IntRange(0), help="Seed of all random draws of the links.")
@click.option("--json", "json_path", metavar="FILE", help="Write the result as JSON ('-': standard output).")
@click.option("--no-watch", is_flag=True, help="No live view of gradwire in COMMAND.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(  # noqa: PLR0913, PLR0917 - a command's arguments are its options
    net: str,
    hosts: int | None,
    dilate: float | None,
    ipv6: bool,
    congestion: str | None,
    timeout: float | None,
    port: int | None,
    mode: Mode,
    seed: int | None,
    json_path: str | None,
    no_watch: bool,
    command: tuple[str, ...],
) -> int:
    """Run COMMAND on every host, with torchrun's variables set: gradwire lab run --net lan100 -- python train.py

    The exit code is that of the first host to fail.
    """
    network = _adjusted(_with_ipv6(load_network(net, hosts), ipv6), congestion, seed)
    names = [host.name for host in network.hosts]
    width = max(map(len, names))
    styled = {name: click.style(name.rjust(width), fg=_COLORS[i % len(_COLORS)]) for i, name in enumerate(names)}
    leave_cleanly()
    to_stderr = json_path == "-"
    if json_path and not to_stderr:
        check_writable(Path(json_path), "run --json")
    with (
        Interrupts(),
        LabView(shown=not no_watch and not to_stderr) as view,
        Lab(network, on_note=view.note, mode=mode, dilate=dilate) as running,
    ):
        used = running.mode
        view.note(
            f"{network.name}: {len(network.ranks)} ranks, TCP {network.congestion}, mode {used}{_stretched(running)}"
        )
        result = running.run(
            command,
            env=view.environment,
            timeout=timeout,
            port=port,
            on_line=lambda host, line: view.line(f"{styled[host]} | {line}", err=to_stderr),
        )
    view.report_recording()
    _report(network, result)
    if json_path:
        _write_json(
            json_path, {"network": network.name, "mode": used, "verdict": result.stats.verdict, **_plain(result)}
        )
    return result.code


def _stretched(running: Lab) -> str:
    factor = running.dilation.factor
    return "" if factor == 1 else f", dilated: a second takes {factor:g} s here, all times are undilated"


def _plain(value: object) -> dict[str, object]:
    plain = msgspec.to_builtins(value, enc_hook=_plain_number)
    assert isinstance(plain, dict)
    return plain


def _plain_number(value: object) -> float | int:
    """Values with units as plain numbers in bytes and seconds."""
    if isinstance(value, int):
        return int(value)
    assert isinstance(value, float)
    return float(value)


def _with_ipv6(network: Network, ipv6: bool) -> Network:
    return replace(network, ipv6=True) if ipv6 else network


def _adjusted(network: Network, congestion: str | None, seed: int | None) -> Network:
    if congestion:
        hosts = tuple(replace(host, congestion=None) for host in network.hosts)
        network = replace(network, congestion=congestion, hosts=hosts)
    return network if seed is None else replace(network, seed=seed)


def _report(network: Network, result: RunResult) -> None:
    stats = result.stats
    carried = Bytes(sum(link.delivered_bytes for link in stats.links))
    real = result.seconds * result.dilate
    stretched = "" if result.dilate == 1 else f" ({real:.1f} s on this machine)"
    note(
        f"{result.seconds:.1f} s{stretched}, {carried} over all links, drops: {stats.queue_drops} full queue, "
        f"{stats.loss_drops} random loss; emulator {stats.cpu_seconds / max(real, 1e-9):.2f} core"
    )
    if stats.problems and result.stolen > 0.02:
        note(
            f"other virtual machines used {result.stolen:.2f} core of this one; repeat the run when they are less busy"
        )
    elif load := disturbance(result.others):
        note(
            f"{load} during the run: ranks may have waited for a processor, so steps may be longer than the links cause"
        )
    _verdict(stats)


def _verdict(stats: EmulatorStats) -> None:
    color = "red" if stats.problems else "yellow" if stats.limits else "green"
    click.echo(click.style(f"lab | {stats.verdict}", fg=color, bold=bool(stats.problems)), err=True)


def _write_json(path: str, value: object) -> None:
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    if path == "-":
        click.echo(text)
        return
    write(Path(path), text + "\n", "run --json")


@lab.command(cls=LabCommand)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def presets(as_json: bool) -> None:
    """List the networks included in gradwire."""
    if as_json:
        _write_json("-", {name: {"about": entry.about, "hosts": entry.hosts} for name, entry in PRESETS.items()})
        return
    width = max(map(len, PRESETS))
    for name, entry in PRESETS.items():
        click.echo(f"{click.style(name.ljust(width), bold=True)}  {entry.hosts:2d} hosts  {entry.about}")


@network_options
@lab.command(cls=LabCommand)
@click.option("--svg", metavar="FILE", help="Draw the network into this file.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def show(net: str, hosts: int | None, svg: str | None, as_json: bool) -> None:
    """Show a network: its links with rate, delay and loss."""
    network = load_network(net, hosts)
    if svg:
        write(Path(svg), to_svg(network), "show --svg")
        note(f"wrote {svg}")
    if as_json:
        _write_json("-", _plain(network))
    elif not svg:
        lab_view = import_module("gradwire.cli.lab_view")
        lab_view.show(lab_view.draw_network(network))


@network_options
@dilate_option
@ipv6_option
@lab.command(cls=LabCommand)
@click.option("--pairs", type=click.IntRange(1), default=4, show_default=True, help="Number of host pairs to measure.")
@click.option(
    "--seconds", type=click.FloatRange(1, 60), default=3.0, show_default=True, help="Length of each iperf3 run."
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def check(
    net: str, hosts: int | None, dilate: float | None, ipv6: bool, pairs: int, seconds: float, as_json: bool
) -> int:
    """Measure a network with ping and iperf3: expected against measured. Exit code 1 if a value is out of tolerance."""
    from gradwire.lab.measure import measure

    network = _with_ipv6(load_network(net, hosts), ipv6)
    leave_cleanly()
    names = [host.name for host in network.ranks]
    chosen = [(a, b) for step in range(1, len(names)) for a, b in zip(names, names[step:] + names[:step], strict=True)]
    with Interrupts(), Lab(network, on_note=note, dilate=dilate) as running:
        before = running.stats()
        rows = [measure(running, a, b, seconds) for a, b in chosen[:pairs]]
        stats = running.stats().since(before)
    judged = [verdict for row in rows for verdict in (row.rtt_good, row.rate_good, row.loss_good)]
    good = False not in judged and not stats.problems
    if as_json:
        _write_json(
            "-", {"network": network.name, "good": good, "verdict": stats.verdict, "pairs": rows, "stats": stats}
        )
    else:
        lab_view = import_module("gradwire.cli.lab_view")
        lab_view.show(lab_view.measurement_table(rows))
        _verdict(stats)
    return 0 if good else 1


@lab.command(cls=LabCommand)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def clean(as_json: bool) -> None:
    """Remove what killed labs left behind, and list open labs."""
    from gradwire.lab.open_labs import open_labs, remove_dead_labs

    removed, running = remove_dead_labs(), open_labs()
    if as_json:
        _write_json("-", {"cleaned": removed, "running": running})
        return
    click.echo(f"removed: {', '.join(removed) or 'nothing'}")
    for record in running:
        click.echo(f"running: {record['network']} (process {record['pid']})")
