"""The site builds without warnings, its reference is complete, and it requests nothing from other hosts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import click

import gradwire
from gradwire import config, events
from gradwire.cli.main import cli
from tests.presence import needs

for package in ("mkdocs", "material", "mkdocstrings"):
    needs(package, "docs")


def commands(command: click.Command, path: str) -> list[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        return [(path, command)]
    context = click.Context(command)
    inner = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
    return [found for name, verb in inner if verb is not None for found in commands(verb, f"{path} {name}")]


def test_the_command_line_page_has_every_command_and_option(site: Path) -> None:
    page = (site / "reference/cli.html").read_text()
    for path, command in commands(cli, "gradwire"):
        assert path in page
        for option in command.params:
            if isinstance(option, click.Option):
                assert option.opts[-1] in page, f"{path} {option.opts}"


def test_the_configuration_page_has_every_variable_and_what_it_means(site: Path) -> None:
    page = (site / "reference/config.html").read_text()
    for variable in config._fields():
        assert variable in page
    rows = re.findall(r"GRADWIRE_\w+</code></td>.*?</tr>", page, re.DOTALL)
    assert len(rows) > 5
    for row in rows:
        meaning = re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)[-1]
        assert len(meaning) > 20, f"no comment stands above the field: {row}"


def test_the_events_page_has_every_event(site: Path) -> None:
    page = (site / "reference/events.html").read_text()
    assert all(event.__name__ in page for event in get_args(events.Event))


def test_the_api_page_has_every_public_name(site: Path) -> None:
    page = (site / "reference/api.html").read_text()
    assert all(name in page for name in gradwire.__all__)


def test_no_page_requests_anything_from_another_host(site: Path) -> None:
    fetched = re.compile(r'<(?:script|img|link|iframe)[^>]+(?:src|href)="(?:https?:)?//[^"]+"')
    canonical = re.compile(r'rel="(?:canonical|edit)"')
    for page in site.rglob("*.html"):
        calls = [tag for tag in fetched.findall(page.read_text()) if not canonical.search(tag)]
        assert not calls, f"{page.relative_to(site)}: {calls}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?https?:", sheet.read_text()), sheet.name
