"""`gradwire bench`: repeats the measurements of a published claim in the lab, with the scripts of `benchmarks/`.

In: a claim's name. Out: what its scripts print, and their tables and plots in --out. This command only knows the
scripts of each claim, and their settings for a quick and for a full run.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from gradwire.cli.signals import leave_cleanly, run_to_end
from gradwire.errors import ConfigError
from gradwire.lab.emulator import NoPrivilegesError
from gradwire.lab.lab import Lab
from gradwire.network import load_network


@dataclass(frozen=True, slots=True)
class Claim:
    """What is claimed, and the commands that measure it: (script and arguments, arguments added by --quick)."""

    about: str
    commands: tuple[tuple[str, str], ...]


CLAIMS: Final[dict[str, Claim]] = {
    "netsenseml": Claim(
        "8 workers at 200, 500 and 800 Mbit/s, degrading, fluctuating: against AllReduce and TopK-0.1",
        (
            ("netsense.py --out {out}", "--net netsense-200 --repeat 1 --seconds 2"),
            ("netsense_changing.py --out {out}", "--lasting 12"),
        ),
    ),
    "dc2": Claim(
        "low and high delay variation: against no compression and uniform compression",
        (("delays.py --out {out}", "--seconds 2"),),
    ),
    "netstorm": Claim(
        "9 sites: planned trees against star, ring and the published trees",
        (
            ("plan_lab.py nine --out {out}", "--planners star,loadaware"),
            ("plan_simulated.py netstorm --out {out}", "--seeds 3"),
        ),
    ),
    "ltp": Claim(
        "loss and incast: LTP against TCP on CUBIC and BBR",
        (
            ("ltp_lab.py clean --json {out}/ltp-clean.json", "--seconds 4"),
            ("ltp_lab.py grid --json {out}/ltp-grid.json", "--loss 0.01 --rtt 0.02 --steps 3"),
        ),
    ),
    "progress": Claim(
        "loss against seconds in virtual time: `auto` against every fixed level and its peers",
        (("progress.py --out {out}", "--quick"),),
    ),
    "harmless": Claim(
        "`auto` on fast networks: against plain DDP",
        (("harmless.py --bare --out {out}", "--repeat 1"), ("harmless.py --out {out}", "--repeat 1")),
    ),
    "whole": Claim(
        "everything combined: 9 sites, changing links, 1 % loss, all peers, and each part switched off in turn",
        (("whole.py --out {out}", "--quick"),),
    ),
    "faults": Claim(
        "faults by (rank, step): detected, recovered, identical replicas, no leftovers",
        (("faults.py --out {out}", "--quick"),),
    ),
    "peers": Claim(
        "torch's hooks, plain gloo, and torchft and hivemind if installed",
        (("peers.py --out {out}", "--net lan100 --repeat 1 --seconds 2"),),
    ),
    "sensing": Claim(
        "cost of sensing in step time and bytes",
        (("sensing.py --out {out}", "--steps 20"),),
    ),
    "backend": Claim(
        "all_reduce against gloo",
        (
            ("backend.py loopback --json {out}/backend.json", "--ranks 2 --turns 10"),
            ("backend.py lab --json {out}/backend.json", "--ranks 2 --turns 5"),
        ),
    ),
}


def folder() -> Path:
    """The checkout's benchmarks: next to the sources of an editable install, or in the working directory."""
    for root in (Path(__file__).parents[3], Path.cwd()):
        if (root / "benchmarks" / "harness").is_dir():
            return root / "benchmarks"
    raise ConfigError("bench: no benchmarks/ directory found; run it from the root of a clone of gradwire")


def lines(claim: Claim, out: Path, quick: bool) -> list[list[str]]:
    """The commands of a claim, as arguments."""
    texts = [f"{line} {extra if quick else ''}" for line, extra in claim.commands]
    return [[word.format(out=out) for word in text.split()] for text in texts]


def require_lab(claim: str) -> None:
    """ConfigError if this user cannot create a network; checked before the first script, which may take minutes."""
    try:
        with Lab(load_network("lan100", 2), mode="namespaces"):
            return
    except NoPrivilegesError as error:
        reason = str(error).partition("(")[2].partition(")")[0]
        raise ConfigError(
            f"bench {claim}: this user cannot create a network ({reason}); run as root: sudo gradwire bench {claim}"
        ) from error


@click.command("bench")
@click.argument("claim", type=click.Choice([*CLAIMS, "list"]))
@click.option("--quick/--full", default=True, help="A few minutes, or all settings and repetitions.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/bench"), help="Tables, plots and JSON.")
def bench_command(claim: str, quick: bool, out: Path) -> None:
    """Repeat the measurements of a CLAIM in the lab (as root). `list` lists the claims."""
    if claim == "list":
        for name, one in CLAIMS.items():
            click.echo(f"{name:12} {one.about}")
        return
    where, out = folder(), out.resolve()
    require_lab(claim)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"bench --out: cannot write into {out} ({error.strerror}); name another directory") from error
    leave_cleanly()
    for arguments in lines(CLAIMS[claim], out, quick):
        click.echo(f"$ python benchmarks/{shlex.join(arguments)}", err=True)
        code = run_to_end([sys.executable, str(where / arguments[0]), *arguments[1:]])
        if code:
            raise click.exceptions.Exit(code)
