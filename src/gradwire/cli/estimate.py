"""`gradwire estimate`: whether gradwire would help a job, from a few numbers: a table of levels, transports and local
steps, and a verdict. Needs no second machine, no root and no model."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from gradwire.errors import ConfigError
from gradwire.network import Network
from gradwire.network.link_spec import LinkSpec
from gradwire.network.network import SWITCH, as_hosts, host_names, star
from gradwire.simulate.estimate import DescribedJob, Estimate, best_local, chosen, estimate
from gradwire.units import Bytes, Rate, Seconds, parse_fraction, parse_rate, parse_seconds

_SCALES: Final = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9}
MOST_PARAMETERS: Final = 1e12
MOST_RANKS: Final = 200
# A speed-up that is worth a change of the training script.
WORTH: Final = 1.05


@click.command("estimate")
@click.option("--params", required=True, help="Parameters that are trained: 124M, 7B, 350k.")
@click.option("--step", "step_time", required=True, help="A step on one machine, without the network: 180ms.")
@click.option("--rate", required=True, help="What each host's link carries, each way: 200mbit.")
@click.option("--rtt", default="1ms", show_default=True, help="Round trip between two hosts.")
@click.option("--loss", default="0%", show_default=True, help="Packets lost between two hosts: 1%.")
@click.option("--ranks", default=2, show_default=True, help="Ranks, each on a host of its own.")
@click.option("--optimizer", type=click.Choice(["adam", "sgd"]), default="adam", show_default=True, help="Its kind.")
@click.option("--bucket-mb", default=25.0, show_default=True, help="DDP's bucket_cap_mb.")
@click.option("--json", "as_json", is_flag=True, help="Print all options as JSON.")
def estimate_command(  # noqa: PLR0913, PLR0917 - click hands over every option as an argument
    params: str, step_time: str, rate: str, rtt: str, loss: str, ranks: int, optimizer: str, bucket_mb: float,
    as_json: bool,
) -> None:  # fmt: skip
    """Estimate what gradwire would change for a job: step time, speed-up and the price in steps."""
    compute = parse_seconds(step_time, "step")
    if not 0 < compute <= 3600:
        raise ConfigError(f"step: must be above 0 s and at most one hour, but it is {compute}")
    if not 0 < bucket_mb <= 1e5:
        raise ConfigError(f"bucket-mb: must be above 0, but it is {bucket_mb:g}; DDP's default is 25")
    net = _network(rate, rtt, loss, ranks)
    job = DescribedJob(_parameters(params), float(compute), net, optimizer == "adam", bucket_mb)
    options = estimate(job)
    if as_json:
        click.echo(json.dumps(_json(options)))
        return
    console = Console()
    console.print(_table(params, job, options))
    console.print(verdict(options, float(compute)), soft_wrap=True)


def _parameters(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmb]?)", text.strip().lower())
    count = float(match[1]) * _SCALES[match[2]] if match else 0.0
    if not 1 <= count <= MOST_PARAMETERS:
        raise ConfigError(f"params: {text!r} is not a number of parameters; write for example 124M, 7B or 350k")
    return round(count)


def _network(rate: str, rtt: str, loss: str, ranks: int) -> Network:
    """Equal hosts on one switch; the round trip and the loss are those of two links each way."""
    if not 2 <= ranks <= MOST_RANKS:
        raise ConfigError(f"ranks: must be in 2..{MOST_RANKS}, but it is {ranks}")
    lost = parse_fraction(loss, "loss")
    if lost >= 1:
        raise ConfigError(f"loss: must be below 100 %, but it is {loss}")
    spec = LinkSpec(parse_rate(rate, "rate"), Seconds(parse_seconds(rtt, "rtt") / 4), loss=1 - (1 - lost) ** 0.5)
    hosts = as_hosts(host_names(ranks))
    return Network("estimate", hosts, star(hosts, lambda _: (spec, spec)), (SWITCH,))


def verdict(options: Sequence[Estimate], compute: float) -> str:
    """What `attach(model)` would do, and what local steps would add, in a few sentences."""
    plain, auto, local = options[0], chosen(options), best_local(options)
    waits = max(0.0, plain.step - compute)
    share = f"Plain DDP takes {Seconds(plain.step)} a step and waits {Seconds(waits)} of it for the network."
    gain = plain.to_accuracy / auto.to_accuracy
    if gain < WORTH:
        sentences = [share, "gradwire would hardly help: auto would send uncompressed, or save next to nothing."]
    else:
        cost = f"about {auto.price - 1:.0%} more steps" if auto.price > 1.005 else "no more steps"
        over = "over the process group" if auto.transport == "group" else f"over gradwire's {auto.transport.upper()}"
        sentences = [
            share,
            f"gradwire.attach(model) would use {auto.level} {over}: {Seconds(auto.step)} a step and {cost} to the "
            f"same loss, so {gain:.1f} times as fast to the same accuracy.",
        ]
    if local is not None and auto.to_accuracy / local.to_accuracy > 1.1:
        sentences.append(
            f"With local steps (optimizer=..., sync_every={local.sync_every}) a step would take {Seconds(local.step)}, "
            f"with about {local.price - 1:.0%} more steps: {plain.to_accuracy / local.to_accuracy:.1f} times as fast; "
            "that changes training."
        )
    return " ".join(sentences)


def _table(name: str, job: DescribedJob, options: Sequence[Estimate]) -> Table:
    world, spec = len(job.network.ranks), job.network.links[0].spec
    title = f"{name} parameters, {world} ranks, {Rate(spec.rate)}, {Seconds(4 * spec.delay)} round trip"
    caption = "steps: at most so many times those of plain DDP; in all: speed-up to the same loss"
    table = Table(title=title, caption=caption, box=None, padding=(0, 1, 0, 0))
    for column in ("level", "every", "sent", "group", "tcp", "ltp", "speed-up", "steps", "in all"):
        table.add_column(column, justify="left" if column == "level" else "right", no_wrap=True)
    plain, auto = options[0], chosen(options)
    for (level, every), group in groupby(options, key=lambda one: (one.level, one.sync_every)):
        rows = list(group)
        best = min(rows, key=lambda one: one.step)
        used = (level, every) == (auto.level, auto.sync_every)
        table.add_row(
            f"{level} (auto)" if used else level,
            str(every),
            str(Bytes(round(best.wire_bytes))),
            *(str(Seconds(one.step)) for one in rows),
            f"{plain.step / best.step:.1f}x",
            f"x {best.price:.2f}",
            f"{plain.to_accuracy / best.to_accuracy:.1f}x",
            style="bold" if used else None,
        )
    return table


def _json(options: Sequence[Estimate]) -> dict[str, Any]:
    plain = options[0]
    rows = [
        asdict(one) | {"speed_up": plain.step / one.step, "to_accuracy": plain.to_accuracy / one.to_accuracy}
        for one in options
    ]
    auto = chosen(options)
    return {"options": rows, "auto": {"level": auto.level, "transport": auto.transport}}
