"""Ranks: a pool of worker processes that run one function as the ranks of a job, on gloo by default; without a backend
the function makes its own groups.

Importing torch takes seconds, so the workers live as long as the test session; every call gets its own process group
over its own part of one store, which this process serves (torch's store over a file polls every 10 ms, eight times per
group). A call that does not end in time kills the pool: the next one starts new processes.
"""

from __future__ import annotations

import copy
import faulthandler
import itertools
import multiprocessing
import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

LIMIT = timedelta(seconds=60)
START = 150.0  # seconds until a fresh worker has imported torch, on a busy machine


class Ranks:
    """`run(world_size, function, *args)` returns each rank's result, or raises with each rank's traceback."""

    def __init__(self, backend: str = "gloo") -> None:
        self._backend = backend
        self._context = multiprocessing.get_context("spawn")
        self._workers: list[tuple[Any, Connection]] = []
        self._store: list[Any] = []
        self._runs = itertools.count()

    def on(self, backend: str) -> Ranks:
        """The same processes with groups of another backend."""
        other = copy.copy(self)
        other._backend = backend
        return other

    def run(self, world_size: int, function: Callable[..., Any], *args: Any, timeout: float = 90.0) -> list[Any]:
        fresh = range(len(self._workers), world_size)
        self._workers += [self._spawn() for _ in fresh]
        for rank in fresh:
            self._await_start(rank)
        store = self.port, f"run{next(self._runs)}"
        for rank in range(world_size):
            self._send(rank, (function, args, rank, world_size, store, self._backend))
        answers = [self._answer(rank, timeout) for rank in range(world_size)]
        failures = [f"rank {rank}:\n{text}" for rank, (ok, text) in enumerate(answers) if not ok]
        if failures:
            raise AssertionError("\n".join(failures))
        return [value for _, value in answers]

    def close(self) -> None:
        for _, pipe in self._workers:
            pipe.close()
        for process, _ in self._workers:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
        self._workers.clear()
        self._store.clear()

    @property
    def port(self) -> int:
        """Where the store is served."""
        if not self._store:
            from torch.distributed import TCPStore

            self._store.append(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
        return int(self._store[0].port)

    def _spawn(self) -> tuple[Any, Connection]:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        return process, ours

    def _await_start(self, rank: int) -> None:
        """A worker's imports do not count as time of its first call."""
        started, text = self._answer(rank, START)
        if not started:
            raise AssertionError(f"the process of rank {rank} did not start: {text}")

    def _send(self, rank: int, call: tuple[Any, ...]) -> None:
        """A worker that died after its last answer was killed by an earlier test; it is found here."""
        process, pipe = self._workers[rank]
        try:
            pipe.send(call)
        except BrokenPipeError:
            process.join(5)
            self._kill()
            raise AssertionError(f"the process of rank {rank} had died, exit code {process.exitcode}") from None

    def _answer(self, rank: int, timeout: float) -> tuple[bool, Any]:
        if rank >= len(self._workers):
            return False, "ended because another rank ended"
        process, pipe = self._workers[rank]
        if pipe.poll(timeout):
            try:
                return pipe.recv()  # type: ignore[no-any-return]
            except (EOFError, ConnectionResetError):
                process.join(5)
                self._kill()
                return False, f"the process ended with exit code {process.exitcode}"
        self._kill()
        return False, f"no answer within {timeout:g} s"

    def _kill(self) -> None:
        for process, _ in self._workers:
            process.kill()
            process.join()
        self._workers[:] = [(process, pipe) for process, pipe in self._workers if process.is_alive()]


def _serve(pipe: Connection) -> None:
    import torch
    import torch.distributed as dist

    faulthandler.enable()  # a crash says in which Python code: pytest shows what a worker writes to stderr
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    pipe.send((True, "started"))
    client = None
    while True:
        try:
            function, args, rank, world_size, (port, prefix), backend = pipe.recv()
        except (EOFError, ConnectionResetError):
            return
        try:
            client = client or dist.TCPStore("127.0.0.1", port, is_master=False, timeout=LIMIT)
            if backend:
                store = dist.PrefixStore(prefix, client)
                dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=LIMIT)
            torch.manual_seed(0)
            pipe.send((True, function(rank, world_size, *args)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
