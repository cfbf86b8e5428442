"""`gradwire simulate`: simulates one synchronisation on a network, with one planner or all of them; with `--train`, a
whole training (cli/simulate_training.py)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace

import click
from rich.console import Console
from rich.table import Table

from gradwire.cli.networks import HELP, linked, network
from gradwire.plan.job import DEFAULT_CHUNK, ReductionJob
from gradwire.plan.planners.registry import DEFAULT, PLANNERS, make_plan
from gradwire.simulate.compare import Row, compare
from gradwire.simulate.models import gradient_bytes
from gradwire.simulate.packets import simulate_packets
from gradwire.simulate.underlay import matrix_of
from gradwire.units import Bytes, Seconds, parse_bytes


@click.command("simulate")
@click.option("--net", required=True, help=HELP)
@click.option("--latency", help="Skyplane's latency CSV, for a throughput CSV.")
@click.option("--model", default="resnet50", show_default=True, help="alexnet, resnet18, resnet50, vgg16, or a size.")
@click.option("--planner", default=DEFAULT, show_default=True, help=f"all, or some of {', '.join(PLANNERS)}.")
@click.option(
    "--chunk",
    default=str(DEFAULT_CHUNK),
    show_default=True,
    help="Bytes that are sent, summed and forwarded as one piece.",
)
@click.option("--ratio", default=1.0, show_default=True, help="Bytes on the wire per gradient byte.")
@click.option(
    "--growth", default=0.0, show_default=True, help="Growth of sums of compressed parts: 0 (none) to 1 (sizes add)."
)
@click.option("--aux", is_flag=True, help="Let chunks use side routes if their own link is busy.")
@click.option("--packets", is_flag=True, help="Also simulate LTP packet by packet; small presets and TOML files only.")
@click.option("--json", "as_json", is_flag=True, help="Print rows as JSON.")
@click.option("--train", help="Train for real in virtual time: gpt, cnn, resnet, mlp, mlp-wide, or module:function.")
@click.option(
    "--level", default="auto", show_default=True, help="With --train: levels or controllers, separated by commas."
)
@click.option("--transport", default="group", show_default=True, help="With --train: group (gloo), tcp, ltp or auto.")
@click.option("--plan", default="flat", show_default=True, help="With --train: flat, auto, or a planner of trees.")
@click.option("--optimizer", help="With --train: adamw:RATE, adam:RATE or sgd:RATE:MOMENTUM; default: the task's.")
@click.option("--hosts", type=int, default=4, show_default=True, help="With --train: hosts of a preset network.")
@click.option("--steps", type=int, default=200, show_default=True, help="With --train: the largest number of steps.")
@click.option("--seconds", type=float, help="With --train: stop after this many virtual seconds.")
@click.option("--compute", help="With --train: a step's time without the network, such as 50ms; default: the task's.")
@click.option("--seed", type=int, default=1, show_default=True, help="With --train: seed of weights, data and network.")
@click.option("--sync-every", help="With --train: local steps between synchronisations of the weights, or auto.")
@click.option("--data", help="With --train: a directory with tinyshakespeare/ and fashion-mnist/; default: built-in.")
def simulate_command(  # noqa: PLR0913, PLR0917 - click hands over every option as an argument
    net: str, latency: str | None, model: str, planner: str, chunk: str, ratio: float, growth: float, aux: bool,
    packets: bool, as_json: bool, train: str | None, level: str, transport: str, plan: str, optimizer: str | None,
    hosts: int, steps: int, seconds: float | None, compute: str | None, seed: int, sync_every: str | None,
    data: str | None,
) -> None:  # fmt: skip
    """Simulate one synchronisation in virtual time, by flows or by packets; with --train, a whole training."""
    if train:
        from gradwire.cli.simulate_training import TrainOptions, run_training

        run_training(
            TrainOptions(
                train,
                net,
                level,
                transport,
                optimizer,
                hosts,
                steps,
                seconds,
                compute,
                seed,
                data,
                as_json,
                sync_every,
                plan,
            )
        )
        return
    names = list(PLANNERS) if planner == "all" else [name.strip() for name in planner.split(",")]
    named = network(net, latency)
    job = ReductionJob(gradient_bytes(model), parse_bytes(chunk, "chunk"), ratio, growth)
    found = compare(named.matrix, job, names, aux)
    rows = sorted(_with_packets(found, net, job) if packets else found, key=_time)
    if as_json:
        rows_of = {
            "net": named.name,
            "members": named.matrix.size,
            "bytes": job.nbytes,
            "rows": [asdict(row) for row in rows],
        }
        click.echo(json.dumps(rows_of))
        return
    Console().print(_table(f"{named.name}, {named.matrix.size} members, {Bytes(job.nbytes)}", rows))


def _with_packets(rows: Iterable[Row], net: str, job: ReductionJob) -> Iterator[Row]:
    """Each row with the packet simulator's second synchronisation; in the first, LTP finds its rates."""
    lab = linked(net)
    for row in rows:
        plan = make_plan(matrix_of(lab), job, row.planner)
        yield replace(row, packets=simulate_packets(lab, plan, job).seconds[-1])


def _time(row: Row) -> float:
    return row.simulated if row.simulated is not None else row.predicted


def _table(title: str, rows: list[Row]) -> Table:
    table = Table(title=title)
    with_packets = any(row.packets is not None for row in rows)
    columns = ("planner", "simulated", *(("packets",) if with_packets else ()), "predicted", "vs. best", "trees")
    for column in (*columns, "planning"):
        table.add_column(column, justify="left" if column == "planner" else "right")
    best = _time(rows[0])
    for row in rows:
        simulated = str(Seconds(row.simulated)) if row.simulated is not None else "too many flows"
        ratio = f"{_time(row) / best:.2f}x" if best else "-"
        planning = str(Seconds(row.planning))
        packets = (str(Seconds(row.packets)),) if row.packets is not None else ()
        rest = (str(Seconds(row.predicted)), ratio, str(row.trees), planning)
        table.add_row(row.planner, simulated, *packets, *rest)
    return table
