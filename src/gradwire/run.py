"""Run: `torchrun ... -m gradwire.run train.py args...` attaches gradwire to every DDP model of an unchanged script.

Where all ranks have built the same weights, DDP sends none at the start (`integrations/ddp_init_sync.py`). Settings
come from GRADWIRE_* variables or the file that GRADWIRE_CONFIG names. When the script ends, rank 0 prints each
model's summary on standard error. With GRADWIRE_BACKEND=gradwire the script's `init_process_group` makes a gradwire
group, whatever backend it names. `-m gradwire.run -m package.module args...` runs a module.

If gradwire's own wires are used and no secret is set, one is made for the job. On one machine it never leaves the
machine; on several it is agreed through torch's store, and rank 0 prints how to set a safer one.
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
from gradwire.integrations.ddp import attach_configured
from gradwire.integrations.ddp_init_sync import construct_synchronised
from gradwire.integrations.local_attach import LocalOptimizers
from gradwire.observe.summary import SummarySink
from gradwire.suggest import did_you_mean
from gradwire.transport.bootstrap.secret import VARIABLE, given_secret, one_machine, shared_file, shared_secret

USAGE = "usage: torchrun [options] -m gradwire.run script.py [arguments]   (or: -m gradwire.run -m module [arguments])"


def attach_to_every_model(sinks: list[SummarySink]) -> Callable[[], None]:
    """Make DDP's constructor attach; appends each model's summary sink. Returns a function that undoes it."""
    original = DistributedDataParallel.__init__

    @functools.wraps(original)
    def construct(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        construct_synchronised(original, self, *args, **kwargs)
        sinks.append(attach_configured(self, resolve(), LocalOptimizers(None, None)).tally)

    def undo() -> None:
        DistributedDataParallel.__init__ = original  # type: ignore[method-assign]

    DistributedDataParallel.__init__ = construct  # type: ignore[method-assign]
    return undo


def use_backend(environment: Mapping[str, str]) -> Callable[[], None]:
    """Make `init_process_group` use the backend that GRADWIRE_BACKEND names. Returns a function that undoes it."""
    name = environment.get("GRADWIRE_BACKEND")
    if not name:
        return lambda: None
    if name.lower() not in dist.Backend.backend_list:
        hint = did_you_mean(name.lower(), dist.Backend.backend_list)
        known = ", ".join(dist.Backend.backend_list)
        raise ConfigError(f"GRADWIRE_BACKEND: {name!r} is not a backend of this torch; {hint}choose one of {known}")
    original = dist.init_process_group

    @functools.wraps(original)
    def init(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        original(name, *args, **kwargs)

    def undo() -> None:
        dist.init_process_group = original

    dist.init_process_group = init
    return undo


def provide_secret(config: Config, environment: MutableMapping[str, str]) -> None:
    """Make a secret for the job if its wires need one and none is set."""
    backend = environment.get("GRADWIRE_BACKEND", "").lower() == "gradwire"
    own_wire = config.transport.kind not in ("auto", "group") or bool(config.planner) or backend
    if not own_wire or given_secret(environment) is not None:
        return
    if one_machine(environment):
        path = shared_file(environment, os.getppid())
        environment[VARIABLE] = shared_secret(path)
        if environment.get("LOCAL_RANK") == "0":
            # When rank 0 ends, all ranks have read the file or the job has failed.
            atexit.register(_unlink_as, os.getpid(), path)
    elif environment.get("RANK") == "0":
        print(
            "gradwire: no job secret is set, so the ranks agree on one through torch's store; anyone who can write to "
            f"MASTER_PORT can take part. To keep others out, set {VARIABLE} to the output of "
            "`openssl rand -hex 32` on every node, or GRADWIRE_SECRET_FILE to a file that contains it.",
            file=sys.stderr,
        )


def _unlink_as(process: int, path: Path) -> None:
    """Delete the file at the end of this process, not of one that was forked from it."""
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
    config = resolve()  # a wrong setting stops every rank before the script loads its data
    provide_secret(config, os.environ)
    sinks: list[SummarySink] = []
    process = os.getpid()
    restore = use_backend(os.environ)
    undo = attach_to_every_model(sinks)
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
            _print_summaries(sinks)


def _print_summaries(sinks: list[SummarySink]) -> None:
    for sink in sinks:
        summary = sink.summary()
        if summary.rank == 0 and summary.steps:
            print(summary, file=sys.stderr)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ConfigError as mistake:
        print(f"gradwire: {mistake}", file=sys.stderr)
        sys.exit(2)
