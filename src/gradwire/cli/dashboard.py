"""`gradwire dashboard`: shows recorded runs, live or finished, in a browser."""

from __future__ import annotations

from pathlib import Path

import click

from gradwire.errors import ConfigError

NEEDS = "dashboard: its packages are not installed; run pip install 'gradwire[dashboard]'"


@click.command()
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; other than loopback needs a token."
)
@click.option("--port", type=click.IntRange(0, 65535), default=7077, show_default=True, help="0: any free port.")
@click.option("--token", envvar="GRADWIRE_DASHBOARD_TOKEN", help="The token; random if needed and not given.")
def dashboard(runs: tuple[Path, ...], host: str, port: int, token: str | None) -> None:
    """Show RUNS in a browser, read-only: recordings, or directories up to two levels above them; default: ./runs."""
    try:
        from gradwire.dashboard.serve import serve
    except ModuleNotFoundError as error:
        raise ConfigError(NEEDS) from error
    serve(runs or (Path("runs"),), host, port, token, lambda address: click.echo(f"gradwire dashboard: {address}"))
