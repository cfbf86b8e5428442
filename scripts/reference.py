"""Writes the reference pages of docs/reference from the source, and is a hook of mkdocs.

    python scripts/reference.py          write them; they are committed, and a test says when they are stale

    cli.md       from the click commands          config.md    from the configuration structs and their comments
    events.md    from the event classes           wire.md      from the docstrings of the modules that write bytes

While the site is built, pages of the repository's top folder (ARCHITECTURE.md, ...) become pages of it, and links to
them lead there. Entries of the navigation whose file does not exist are left out, and "folder/*.md" stands for all
pages of a folder.
"""

from __future__ import annotations

import dataclasses
import inspect
import posixpath
import re
import struct
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import click
import msgspec

# Modules whose docstring is the layout of bytes that leave a process, and the structs that pack them. LTP has a page of
# its own.
LAYOUTS = {
    "Frames": "gradwire.compress.frame",
    "Squeezed frames": "gradwire.compress.lossless",
    "Pulses": "gradwire.sense.pulse",
    "Frames on a tree": "gradwire.tree.frame_header",
    "Pieces on a side route": "gradwire.tree.side_routes",
    "Messages between a plan's members": "gradwire.plan.membership.control_messages",
    "Calls of the backend": "gradwire.backend.call",
}
# Pages of the site that live in the repository's top folder.
TOP = {
    "explanation/architecture": "ARCHITECTURE.md",
    "explanation/security": "SECURITY.md",
    "reference/changelog": "CHANGELOG.md",
}
ROOT = Path(__file__).parents[1]


def on_config(config: Any) -> Any:
    config.nav = list(_present(config.nav, Path(config.docs_dir)))
    return config


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for name, file in TOP.items():
        files.append(File.generated(config, f"{name}.md", content=_top(ROOT / file)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """On disk a page links to a file of the top folder; in the site that is the page made of it."""
    folder = posixpath.dirname(page.file.src_uri)
    for name, file in TOP.items():
        there = posixpath.relpath(f"{name}.md", folder or ".")
        markdown = re.sub(rf"\]\((?:\.\./)+{re.escape(file)}(?=[)#])", f"]({there}", markdown)
    return markdown


def pages() -> dict[str, str]:
    """Path of each page that is made from the source -> its Markdown."""
    made = {"cli": cli_page, "config": config_page, "events": events_page, "wire": wire_page}
    head = "<!-- Made by scripts/reference.py; change the source and run that. -->\n"
    return {f"docs/reference/{name}.md": head + make().rstrip() + "\n" for name, make in made.items()}


def _top(file: Path) -> str:
    """Lists inside numbered lists are indented by three there, which GitHub reads and Python's Markdown does not."""
    return re.sub(r"^ {3}(?=\S)", "    ", file.read_text(), flags=re.MULTILINE)


def _present(nav: list[Any], docs: Path) -> Iterator[Any]:
    for entry in nav:
        if isinstance(entry, str) and "*" in entry:
            found = sorted(path.relative_to(docs) for path in docs.glob(entry))
            yield from ({path.stem.replace("-", " ").capitalize(): str(path)} for path in found)
            continue
        ((title, target),) = entry.items()
        if isinstance(target, list):
            yield {title: list(_present(target, docs))}
        elif (docs / target).exists() or target.removesuffix(".md") in TOP:
            yield entry


def cli_page() -> str:
    from gradwire.cli.main import cli

    lines = ["# Command line", "", "Errors are one line on standard error and exit code 2; Ctrl-C is 130.", ""]
    for context in _contexts(cli, "gradwire"):
        command, path = context.command, context.command_path
        usage = " ".join(command.collect_usage_pieces(context))
        lines += [f"## {path}", "", f"`{path} {usage}`", "", _prose(command.help or ""), ""]
        options = [parameter for parameter in command.get_params(context) if isinstance(parameter, click.Option)]
        lines += _table(("option", "meaning"), [_option(option, context) for option in options if not option.hidden])
    return "\n".join(lines) + "\n"


def _contexts(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[click.Context]:
    """Of every command that runs; as when they are called, settings of the groups above hold (-h beside --help)."""
    context = click.Context(command, info_name=name, parent=parent, **command.context_settings)
    if not isinstance(command, click.Group):
        yield context
        return
    for inner in command.list_commands(context):
        found = command.get_command(context, inner)
        assert found is not None
        yield from _contexts(found, inner, context)


def _option(option: click.Option, context: click.Context) -> tuple[str, str]:
    record = option.get_help_record(context)
    assert record is not None
    names, meaning = record
    return f"`{names}`", meaning


def config_page() -> str:
    from gradwire import config

    lines = ["# Configuration", "", _prose(inspect.getdoc(config) or ""), ""]
    root = config.Config
    lines += _settings(root, "")
    for field in msgspec.structs.fields(root):
        if _is_struct(field.type):
            lines += [f"## [{field.name}]", "", inspect.getdoc(field.type) or "", ""]
            lines += _settings(field.type, field.name)
    others = ", ".join(f"`{name}`" for name in sorted(config.OTHER_VARIABLES))
    return "\n".join([*lines, "## Other variables", "", f"Not settings, but known: {others}.", ""])


def _settings(struct: Any, room: str) -> list[str]:
    comments = _comments(struct)
    rows = []
    for field in msgspec.structs.fields(struct):
        if not _is_struct(field.type):
            variable = "_".join(part for part in ("GRADWIRE", room, field.name) if part).upper()
            default = "" if field.default is msgspec.NODEFAULT else f"`{field.default!r}`"
            rows.append((f"`{field.name}`", f"`{variable}`", default, comments.get(field.name, "")))
    return _table(("key", "variable", "default", "meaning"), rows)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _comments(struct: Any) -> dict[str, str]:
    """The comment lines above each field of a class; fields that follow one another share them."""
    found: dict[str, str] = {}
    gathered: list[str] = []
    above = False
    for line in map(str.strip, inspect.getsource(struct).splitlines()):
        comment, name = line.startswith("#"), re.match(r"(\w+):", line)
        if comment:
            gathered = [*(gathered if above else []), line.lstrip("# ")]
        elif name:
            found[name[1]] = " ".join(gathered)
        above = comment
    return found


def events_page() -> str:
    from gradwire import events

    lines = ["# Events", "", _prose(inspect.getdoc(events) or ""), ""]
    for event in get_args(events.Event):
        lines += [f"## {event.__name__}", "", inspect.getdoc(event) or "", ""]
        fields = dataclasses.fields(event) if dataclasses.is_dataclass(event) else msgspec.structs.fields(event)
        lines += _table(("field", "type"), [(f"`{field.name}`", f"`{_type_name(field.type)}`") for field in fields])
    return "\n".join(lines) + "\n"


def _type_name(kind: Any) -> str:
    return kind if isinstance(kind, str) else kind.__name__ if isinstance(kind, type) else str(kind)


def wire_page() -> str:
    lines = [
        "# Wire format",
        "",
        "What leaves a process, whatever carries it. [LTP](../ltp.md) and the [streams](../wires.md)",
    ]
    lines += [
        "under it have their own pages, and [compatibility](../compatibility.md) says what the versions mean.",
        "",
    ]
    for title, name in LAYOUTS.items():
        module = import_module(name)
        version = f", layout {module.VERSION}" if hasattr(module, "VERSION") else ""
        lines += [f"## {title}{version}", "", f"`{name}`", "", _prose(inspect.getdoc(module) or ""), ""]
        lines += [
            f"Packed as `{value.format}` ({value.size} bytes), in the letters of Python's `struct`.\n"
            for value in vars(module).values()
            if isinstance(value, struct.Struct)
        ]
    return "\n".join(lines) + "\n"


def _prose(text: str) -> str:
    return inspect.cleandoc(text)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    lines = [head, tuple("---" for _ in head), *rows]
    return [
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines
    ] + [""]


def main() -> None:
    for path, text in pages().items():
        (ROOT / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
