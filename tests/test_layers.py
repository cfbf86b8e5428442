"""Layers: a module imports only from its own layer and lower ones; pure packages import neither torch nor sockets."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import gradwire

ROOT = Path(gradwire.__file__).parent
# Lowest layer first. A module may import from its own layer and from those before it.
LAYERS = [
    {"units", "errors", "clock", "closing", "level", "types", "events", "fork", "suggest", "_native"},
    {"network", "device"},
    {"sense", "decide", "compress", "plan", "transport", "observe"},
    {"config"},
    {"exchange", "tree", "backend"},
    {"sites"},
    {"runtime"},
    {"local_steps"},
    {"integrations", "run"},
    {"lab", "simulate", "demo", "doctor", "dashboard"},
    {"cli"},
]
# These packages import `types.py`, not each other.
STAGES = {"sense", "decide", "compress", "plan", "transport", "observe"}
NO_TORCH_NO_SOCKETS = {"sense", "decide", "plan", "network", "simulate", "lab"}
# Training in virtual time computes real gradients.
REAL_GRADIENTS = {f"simulate/{name}.py" for name in ("local_workers", "lockstep", "tasks", "workers")}
OUTSIDE_THE_RULE = {"__init__", "__main__"}


def layer_of(module: str) -> int:
    return next(index for index, names in enumerate(LAYERS) if module in names)


def imports(path: Path) -> list[str]:
    """Dotted names imported by a file, leaving out blocks that only type checkers read."""
    found: list[str] = []
    todo: list[ast.AST] = [ast.parse(path.read_text())]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            module = node.module or ""
            found += [f"{module}.{alias.name}" for alias in node.names]
        todo += ast.iter_child_nodes(node)
    return found


FILES = sorted(
    path for path in ROOT.rglob("*.py") if path.relative_to(ROOT).parts[0].removesuffix(".py") not in OUTSIDE_THE_RULE
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_come_from_lower_layers(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0].removesuffix(".py")
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "gradwire" and len(parts) > 1 and parts[1] not in ("__version__", package):
            other = parts[1]
            assert layer_of(other) <= layer_of(package), f"{package} imports {name}, which lies above it"
            assert not {package, other} <= STAGES, f"{package} imports {name}: stages import types, not each other"
        if package in NO_TORCH_NO_SOCKETS and str(path.relative_to(ROOT)) not in REAL_GRADIENTS:
            assert parts[0] not in ("torch", "socket"), f"{package} must not import {name}"


def test_the_table_in_the_architecture_names_every_module_in_the_order_of_the_layers() -> None:
    text = (Path(__file__).parents[1] / "ARCHITECTURE.md").read_text()
    table = text.partition("| layer |")[2].partition("| `native/` |")[0]
    named = [name.strip("/") for name in re.findall(r"`(\w+/?)`", table)]
    assert sorted(named) == sorted(set().union(*LAYERS))
    assert [layer_of(name) for name in named] == sorted(layer_of(name) for name in named)
