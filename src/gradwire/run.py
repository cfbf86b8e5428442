"""The second door: no changed line. `torchrun ... -m gradwire.run train.py args...` attaches to every DDP model.

Settings come from GRADWIRE_* variables or the file GRADWIRE_CONFIG names. When the script ends, rank 0 prints each
model's summary on standard error. With GRADWIRE_BACKEND=gradwire the script's `init_process_group` makes a gradwire
group, whatever it names. `-m gradwire.run -m package.module args...` runs a module.

Where gradwire's own wires are used and no secret is given, one is made for the job: on one machine it never leaves it;
on several it goes through torch's store, and rank 0 says how to give a better one.
"""

from __future__ import annotations

import atexit
import functools
import os
import runpy
import sys
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gradwire.config import Config, resolve
from gradwire.errors import ConfigError
from gradwire.integrations.ddp import attach
from gradwire.observe.summary import SummarySink
from gradwire.suggest import did_you_mean
from gradwire.transport.bootstrap.secret import VARIABLE, given_secret, one_machine, shared_file, shared_secret

USAGE = "usage: torchrun [options] -m gradwire.run script.py [arguments]   (or: -m gradwire.run -m module [arguments])"


def attach_to_every_model(tallies: list[SummarySink]) -> Callable[[], None]:
    """Make DDP's constructor attach; the models' tallies are appended. Returns the function that undoes it."""
    original = DistributedDataParallel.__init__

    @functools.wraps(original)
    def construct(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        tallies.append(attach(self).tally)

    def undo() -> None:
        DistributedDataParallel.__init__ = original  # type: ignore[method-assign]

    DistributedDataParallel.__init__ = construct  # type: ignore[method-assign]
    return undo


def use_backend(environment: Mapping[str, str]) -> Callable[[], None]:
    """Make `init_process_group` take the backend that GRADWIRE_BACKEND names. Returns the function that undoes it."""
    name = environment.get("GRADWIRE_BACKEND")
    if not name:
        return lambda: None
    if name.lower() not in dist.Backend.backend_list:
        hint = did_you_mean(name.lower(), dist.Backend.backend_list)
        raise ConfigError(f"GRADWIRE_BACKEND={name}: {hint}torch knows {', '.join(dist.Backend.backend_list)}")
    original = dist.init_process_group

    @functools.wraps(original)
    def init(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        original(name, *args, **kwargs)

    def undo() -> None:
        dist.init_process_group = original

    dist.init_process_group = init
    return undo


def provide_secret(config: Config, environment: MutableMapping[str, str]) -> None:
    """Give the job a secret if its wires need one and nobody gave any."""
    backend = environment.get("GRADWIRE_BACKEND", "").lower() == "gradwire"
    ours = config.transport.kind != "group" or bool(config.plan) or backend
    if not ours or given_secret(environment) is not None:
        return
    if one_machine(environment):
        path = shared_file(environment, os.getppid())
        environment[VARIABLE] = shared_secret(path)
        if environment.get("LOCAL_RANK") == "0":
            # By the end of rank 0 all have met, or the job has failed.
            atexit.register(_unlink_as, os.getpid(), path)
    elif environment.get("RANK") == "0":
        print(
            "gradwire: no job secret is set, so rank 0 draws one and torch's store hands it out; whoever can reach "
            f"MASTER_PORT can read it. To keep it from them, set {VARIABLE} to the output of `openssl rand -hex 32` "
            "on every node, or GRADWIRE_SECRET_FILE to a file that holds it.",
            file=sys.stderr,
        )


def _unlink_as(process: int, path: Path) -> None:
    """At the end of this process, not of one that was forked from it."""
    if os.getpid() == process:
        path.unlink(missing_ok=True)


def main(arguments: list[str]) -> None:
    """Run a script or module as `__main__` with gradwire attached to its models."""
    as_module = arguments[:1] == ["-m"]
    target = arguments[1:2] if as_module else arguments[:1]
    if target in (["-h"], ["--help"]) and not as_module:
        print(f"{USAGE}\n\n{__doc__}")
        return
    if not target:
        raise ConfigError(f"no script to run; {USAGE}")
    if not as_module and not Path(target[0]).is_file():
        raise ConfigError(f"no script {target[0]!r}; {USAGE}")
    config = resolve()  # a wrong setting should stop every rank before the script loads its data
    provide_secret(config, os.environ)
    tallies: list[SummarySink] = []
    process = os.getpid()
    restore = use_backend(os.environ)
    undo = attach_to_every_model(tallies)
    sys.argv = arguments[1:] if as_module else arguments
    try:
        if as_module:
            runpy.run_module(target[0], run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(target[0]).resolve().parent))
            runpy.run_path(target[0], run_name="__main__")
    finally:
        undo()
        restore()
        if os.getpid() == process:  # not in one that was forked from it
            _tell(tallies)


def _tell(tallies: list[SummarySink]) -> None:
    for tally in tallies:
        summary = tally.summary()
        if summary.rank == 0 and summary.steps:
            print(summary, file=sys.stderr)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ConfigError as mistake:
        print(f"gradwire: {mistake}", file=sys.stderr)
        sys.exit(2)
