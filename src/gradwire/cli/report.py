"""`gradwire report RUN...`: writes a report on one run, or compares several, as HTML, Markdown or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from gradwire.errors import ConfigError
from gradwire.observe.report import load, to_html, to_json, to_markdown

WRITERS: Final = {".html": to_html, ".md": to_markdown, ".json": to_json}


@click.command("report")
@click.argument("runs", nargs=-1, required=True)
@click.option("-o", "--out", help="A .html, .md or .json file; default: report.html.")
@click.option(
    "--accuracy", multiple=True, type=click.FloatRange(0, 1), help="Report the time to this accuracy, e.g. 0.9."
)
@click.option("--also", multiple=True, type=click.Choice(["html", "md", "json"]), help="Also write this format.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; no file unless --out is given.")
def report_command(
    runs: tuple[str, ...], out: str | None, accuracy: tuple[float, ...], also: tuple[str, ...], as_json: bool
) -> None:
    """Write a report on RUNS: recording directories or files. Several are compared with the first."""
    if as_json:
        click.echo(to_json(load(runs, accuracy)), nl=False)
    if out or also or not as_json:
        for path in write_report(runs, Path(out or "report.html"), accuracy, also):
            click.echo(f"wrote {path}", err=as_json)


def write_report(
    runs: tuple[str, ...], out: Path, accuracy: tuple[float, ...] = (), also: tuple[str, ...] = ()
) -> list[Path]:
    """Write the reports and return their paths; each recording is read once."""
    paths = list(dict.fromkeys([out, *(out.with_suffix(f".{form}") for form in also)]))
    for path in paths:
        if path.suffix not in WRITERS:
            raise ConfigError(f"report --out: {path.name} must end in {', '.join(WRITERS)}")
    loaded = load(runs, accuracy)
    for path in paths:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(WRITERS[path.suffix](loaded), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"report --out: cannot write {path} ({error.strerror}); name another file") from error
    return paths
