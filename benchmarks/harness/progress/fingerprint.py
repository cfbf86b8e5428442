"""Fingerprint: a hash of what a run's result depends on: code, without comments and docstrings, and torch's version.

What is listed is what can change a result, not what is imported. A fixed level's losses depend on codecs, exchanges and
tasks, and no controller's change throws them away. Native kernels are not listed: each equals its torch reference in
compress/kernels to the bit, and tests hold them to it.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final

import gradwire
from gradwire.simulate.tasks import own_text

SOURCES: Final = Path(gradwire.__file__).parent
# What the loss of a fixed level depends on, what its times depend on, and what a controller's run depends on.
TRAINING: Final = (
    "decide/fixed.py",
    "compress",
    "exchange",
    "level.py",
    "demo/data.py",
    "demo/train.py",
    *(f"simulate/{one}.py" for one in ("tasks", "workers", "lockstep")),
)
# A part of those folders that changes no loss: it samples gradients for controllers.
NOT_TRAINING: Final = ("compress/gradient_sample.py",)
TIMING: Final = (
    "network", *(f"simulate/{one}.py" for one in ("timeline", "transfer", "link_times")), "decide/ladder.py",
)  # fmt: skip
LOCAL: Final = ("local_steps", "simulate/local_workers.py", "simulate/local_training.py")
CONTROL: Final = (
    *TRAINING, *NOT_TRAINING, *TIMING, "decide", "sense", "runtime/governor.py", "simulate/training.py",
    *(f"simulate/{one}.py" for one in ("transports", "simulated_routes", "tree_times")), "types.py",
)  # fmt: skip


@cache
def code_of(parts: tuple[str, ...], root: Path = SOURCES) -> str:
    """A hash of the modules' syntax trees."""
    digest = hashlib.sha256()
    for file in files_of(parts, root):
        digest.update(str(file.relative_to(root)).encode())
        digest.update(ast.dump(_without_docstrings(ast.parse(file.read_text()))).encode())
    return digest.hexdigest()[:16]


def files_of(parts: Iterable[str], root: Path = SOURCES) -> list[Path]:
    """The modules of these parts, without those that change no result unless they are named themselves."""
    left_out = {root / one for one in NOT_TRAINING if one not in parts}
    found = []
    for part in parts:
        path = root / part
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return [one for one in dict.fromkeys(found) if one not in left_out]


@cache
def torch_of() -> str:
    """torch's release: another one may sum in another order."""
    return version("torch").partition("+")[0]


@cache
def built_in_text() -> str:
    """What the GPT is trained on without a directory of data: the text of gradwire's own modules."""
    return hashlib.sha256(own_text().encode()).hexdigest()[:8]


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node, clean=False
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return tree
