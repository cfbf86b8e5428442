"""Main: the `gradwire` command. A subcommand's module is imported when it is called, so that help is fast."""

from __future__ import annotations

import sys
from importlib import import_module

import click

from gradwire import __version__
from gradwire.cli.suggesting_group import SuggestingGroup
from gradwire.errors import GradwireError

# command -> (module, attribute, one line for the list of commands)
COMMANDS = {
    "plan": ("gradwire.cli.plan", "plan_command", "Plan aggregation trees for a network."),
    "simulate": (
        "gradwire.cli.simulate",
        "simulate_command",
        "Simulate one synchronisation with each planner's trees.",
    ),
    "estimate": (
        "gradwire.cli.estimate",
        "estimate_command",
        "Estimate whether gradwire would help a job, from a few numbers.",
    ),
    "demo": ("gradwire.cli.demo", "demo", "Train a small CNN with plain DDP and with gradwire, and compare."),
    "dashboard": ("gradwire.cli.dashboard", "dashboard", "Show recorded runs, live or finished, in a browser."),
    "doctor": (
        "gradwire.cli.doctor",
        "doctor",
        "Measure the network between the ranks, find mistakes, recommend a level.",
    ),
    "watch": ("gradwire.cli.watch", "watch_command", "Follow a run: parts of a step, network, levels and reasons."),
    "replay": ("gradwire.cli.replay", "replay_command", "Replay a recorded run in any view, or export Parquet tables."),
    "report": ("gradwire.cli.report", "report_command", "Write a report on one run, or compare several."),
    "store": (
        "gradwire.cli.store",
        "store_command",
        "Serve torch's store in a separate process, so that rank 0 may fail.",
    ),
    "bench": ("gradwire.cli.bench", "bench_command", "Repeat the measurements of a published claim in the lab."),
    "lab": ("gradwire.cli.lab", "lab", "Emulate networks on one machine: run, show, check."),
}


class LazyGroup(SuggestingGroup):
    """Imports a command's module when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][2]) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gradwire")
def cli() -> None:
    """Data-parallel PyTorch training over slow, shared, lossy and far networks."""


def main() -> None:
    """Run the command. A GradwireError is one line on standard error and exit code 2; Ctrl-C is 130."""
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
