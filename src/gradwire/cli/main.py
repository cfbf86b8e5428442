"""gradwire: the group of verbs. A verb's module is imported when the verb is called, so that help stays quick."""

from __future__ import annotations

import sys
from importlib import import_module

import click

from gradwire import __version__
from gradwire.cli.suggesting_group import SuggestingGroup
from gradwire.errors import GradwireError

# verb -> (module, attribute, one line for the list of verbs)
VERBS = {
    "plan": ("gradwire.cli.plan", "plan_command", "The aggregation trees for a network, printed and drawn."),
    "simulate": (
        "gradwire.cli.simulate",
        "simulate_command",
        "How long each planner's trees would take.",
    ),
    "demo": ("gradwire.cli.demo", "demo", "Train a small CNN with plain DDP and with gradwire, side by side."),
    "dashboard": ("gradwire.cli.dashboard", "dashboard", "Recorded runs, live or finished, in a browser."),
    "doctor": ("gradwire.cli.doctor", "doctor", "Measure the network between the ranks, find mistakes, recommend."),
    "watch": ("gradwire.cli.watch", "watch_command", "A run as it trains: step split, network, levels and why."),
    "replay": ("gradwire.cli.replay", "replay_command", "A recorded run again, in any view; or as Parquet tables."),
    "report": ("gradwire.cli.report", "report_command", "One page about a run, or about several side by side."),
    "store": ("gradwire.cli.store", "store_command", "Torch's store as a process of its own, so that rank 0 may die."),
    "bench": ("gradwire.cli.bench", "bench_command", "Run a published claim again, in the lab."),
    "lab": ("gradwire.cli.lab", "lab", "Real networks on one machine: run, show, check."),
}


class LazyGroup(SuggestingGroup):
    """Knows its verbs by name and loads one when asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module, attribute, _ = VERBS[cmd_name]
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, VERBS[name][2]) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gradwire")
def cli() -> None:
    """Data-parallel PyTorch training over slow, shared, lossy and far networks."""


def main() -> None:
    """Errors of ours are one line on standard error and exit code 2; Ctrl-C is 130."""
    try:
        code = cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("gradwire: stopped", err=True)
        sys.exit(130)
    except GradwireError as error:
        click.echo(f"gradwire: {error}", err=True)
        sys.exit(2)
    sys.exit(code if isinstance(code, int) else 0)
