"""Fault run: one training job in the lab with one fault at (rank, step), and its outcome.

1. the ranks run on their hosts and report every step
2. when the fault's rank reports the fault's step, the fault is injected; what it undoes later is undone on time
3. the run waits until all ranks have ended or the case's time is up; no process is ended before that
4. the reports become an Outcome, which also lists what the job left on this machine
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from gradwire.lab import Lab
from gradwire.lab.open_labs import state_folder
from gradwire.lab.process import ProcessWatcher
from gradwire.network import Change, Network
from gradwire.units import Seconds

MARK = "FAULT "
FOLDER = Path(__file__).parents[1]
# A cut cable in terms of the link model: one packet in a million arrives.
CUT, NO_LOSS = 0.999999, 0.0
# Seconds until every rank has started training: importing torch on two cores takes long.
START = 90.0

# Files that torch creates in TMPDIR when it is imported.
TORCH_FILES = ("torchinductor_root",)

# continues: all ranks train to the end. stops: every rank raises. without: all but the fault's rank train to the end.
# rejoins: as without, and the fault's rank rejoins and ends as the others do. failover: as without, and the other ranks
# that the fault affects rejoin.
Expectation = Literal["continues", "stops", "without", "rejoins", "failover"]
REJOINING = ("rejoins", "failover")


@dataclass(slots=True)
class LabControl:
    """What a fault acts on: the lab, the processes of the ranks, and actions at a later time."""

    lab: Lab
    pids: dict[int, int] = field(default_factory=dict)
    namespaces: set[str] = field(default_factory=set)
    pending: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    # Starts or restarts the process of a rank.
    start: Callable[[int, Mapping[str, str]], None] = lambda rank, env: None

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self.pending.append((time.monotonic() + seconds, act))

    def signal(self, rank: int, number: int) -> None:
        os.kill(self.pids[rank], number)

    def set_loss(self, rank: int, loss: float, ways: tuple[str, ...] = ("->*", "*->")) -> None:
        """Set the loss rate of packets from (`->*`) and to (`*->`) the host of a rank."""
        host = self.lab.network.ranks[rank].name
        for way in ways:
            link = f"{host}{way}" if way.startswith("-") else f"{way}{host}"
            self.lab.apply(Change(Seconds(0), link, loss=loss))

    def partition(self, loss: float) -> None:
        """Set the loss rate of packets between the two sides of a network."""
        self.lab.apply(Change(Seconds(0), "left-right", loss=loss))

    def block_protocol(self, rank: int, protocol: int) -> None:
        """A firewall on a rank's host: drop outgoing packets of this IP protocol."""
        # Classic BPF on the protocol byte: 2 drops, 0 passes. Needs no firewall module of the kernel.
        program = f"4,48 0 0 9,21 0 1 {protocol},6 0 0 2,6 0 0 0"
        host = self.lab.network.ranks[rank].name
        for words in ("qdisc replace dev eth0 clsact", "filter add dev eth0 egress bpf da bytecode"):
            entry = self.lab.spawn(host, ["tc", *words.split(), *([program] if words.startswith("filter") else [])])
            if entry.process.wait(10):
                raise OSError(f"tc {words}: {entry.process.communicate()[0].decode()}")

    def run_due(self) -> None:
        due = [entry for entry in self.pending if entry[0] <= time.monotonic()]
        self.pending = [entry for entry in self.pending if entry not in due]
        for _, act in due:
            act()


@dataclass(frozen=True, slots=True)
class Fault:
    """What is injected, where and when. `act` runs outside the rank; `inside` names a fault made by the rank itself."""

    name: str
    rank: int = 1
    step: int = 10
    act: Callable[[LabControl, int], None] | None = None
    inside: str = ""
    # Further ranks that the fault affects.
    also: tuple[int, ...] = ()
    # Environment of the fault's rank, and a directory that exists while the job runs (its path replaces `{place}`).
    env: Mapping[str, str] = field(default_factory=dict)
    place: Callable[[], AbstractContextManager[str]] = lambda: nullcontext("")
    # Changes the network before any rank starts.
    before: Callable[[LabControl, int], None] | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """A fault in a job, the required outcome, and within how many seconds."""

    fault: Fault
    way: str
    config: Mapping[str, Any]
    network: Network
    expect: Expectation
    within: float
    steps: int = 60
    step_seconds: float = 0.02
    # Timeout of the process group: the only deadline where everything is sent at level `off`.
    group_timeout: float = 8.0

    @property
    def name(self) -> str:
        return f"{self.fault.name}, {self.way}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds count from the fault. `detected`: the first and the last error among the ranks that must raise;
    `recovered`: the end of the longest pause between steps that all ranks finished; `lost`: requested steps that not
    all surviving ranks finished; `same`: whether the hashes of all ranks were equal at every step."""

    case: str
    verdict: str
    detected: tuple[float, float] | None
    recovered: float | None
    pause: float | None
    lost: int | None
    same: bool
    errors: dict[int, str]
    left: tuple[str, ...]
    lab: str
    # Rank 0's link estimates at the end: by peer, the values by name.
    known: dict[int, dict[str, float]] = field(default_factory=dict)
    # Where the fault's rank rejoins: seconds from the end of the fault until then, and the steps it missed.
    back: float | None = None
    missed: int | None = None

    @property
    def good(self) -> bool:
        return self.verdict == "as promised" and self.same and not self.left


class JobLog:
    """Everything the ranks reported."""

    def __init__(self) -> None:
        self.steps: dict[int, dict[int, tuple[float, int]]] = {}
        self.failed: dict[int, tuple[float, str]] = {}
        self.trained: dict[int, int] = {}
        self.injected: float | None = None
        self.attaching: dict[int, float] = {}
        self.output: list[str] = []
        self.known: dict[int, dict[str, float]] = {}
        # (time, reporting rank, peer) of every loss and rejoin; and the time at which the fault was undone.
        self.losses: list[tuple[float, int, int]] = []
        self.backs: list[tuple[float, int, int]] = []
        self.undone: float | None = None

    def add(self, message: dict[str, Any]) -> None:
        rank, at = message["rank"], message["at"]
        match message["kind"]:
            case "step":
                self.steps.setdefault(message["step"], {})[rank] = (at, message["hash"])
            case "failed":
                self.failed[rank] = (at, f"{message['error']}: {message['text']}")
            case "trained":
                self.trained[rank] = message["hash"]
                if rank == 0:
                    self.known = {int(peer): values for peer, values in message["known"].items()}
            case "peer_lost":
                self.losses.append((at, rank, message["peer"]))
            case "peer_back":
                self.backs.append((at, rank, message["peer"]))
            case "injected":
                self.injected = at
            case "attaching":
                self.attaching[rank] = at

    @property
    def same(self) -> bool:
        finals = len(set(self.trained.values())) <= 1
        return finals and all(len({value for _, value in ranks.values()}) == 1 for ranks in self.steps.values())


def run(case: Case, limit: float) -> Outcome:
    """Run one case; ranks that still run `limit` seconds after the fault are ended and count as hanging."""
    log = JobLog()
    with tempfile.TemporaryDirectory(prefix="gradwire-fault-") as folder, case.fault.place() as place:
        job = Path(folder) / "job.json"
        job.write_text(json.dumps(_job(case, place)))
        with Lab(case.network) as lab:
            control = LabControl(lab)
            if case.fault.before:
                case.fault.before(control, case.fault.rank)
            hanging = _run_job(case, control, log, job, place, limit)
            emulator, verdict = lab.emulator.pid, lab.stats().verdict
        left = tuple(
            leftovers(
                control,
                emulator,
                [path for path in Path(folder).iterdir() if path != job and path.name not in TORCH_FILES],
            )
        )
    return evaluate(case, log, hanging, left, verdict)


def _job(case: Case, place: str) -> dict[str, Any]:
    config = json.loads(json.dumps(dict(case.config)).replace("{place}", place))
    fault = case.fault
    return {
        "config": config, "steps": case.steps, "step_seconds": case.step_seconds, "group_timeout": case.group_timeout,
        "rank": fault.rank, "step": fault.step, "inside": fault.inside, "rejoins": case.expect in REJOINING,
    }  # fmt: skip


def _run_job(case: Case, control: LabControl, log: JobLog, job: Path, place: str, limit: float) -> list[int]:
    """Run the ranks; returns those that had to be ended."""
    fault, lab = case.fault, control.lab
    names = [host.name for host in lab.network.ranks]

    def on_line(host: str, line: str) -> None:
        if not line.startswith(MARK):
            log.output.append(f"{host}: {line}")
            return
        message, _ = json.JSONDecoder().raw_decode(line.removeprefix(MARK))
        log.add(message)
        if message["kind"] == "started":
            control.pids[message["rank"]] = message["pid"]
            control.namespaces.add(os.readlink(f"/proc/{message['pid']}/ns/net"))
        if fault.act and log.injected is None and message["rank"] == fault.rank and message.get("step") == fault.step:
            log.injected = time.monotonic()
            fault.act(control, fault.rank)

    watch = ProcessWatcher([], on_line)

    def start(rank: int, own: Mapping[str, str]) -> None:
        env = {**os.environ, **lab.rank_env(rank), "TMPDIR": str(job.parent), "PYTHONPATH": str(FOLDER), **own}
        watch.add(lab.spawn(names[rank], [sys.executable, "-m", "harness.fault_job", str(job)], env))

    control.start = start
    for rank in range(len(names)):
        start(rank, fault.env if rank == fault.rank else {})
    deadline = time.monotonic() + START
    try:
        while watch.running and time.monotonic() < deadline:
            watch.step(0.02)
            control.run_due()
            if log.injected is not None and log.undone is None and not control.pending:
                log.undone = time.monotonic()
            if log.injected is not None:
                deadline = log.injected + limit
            elif len(log.attaching) == len(names) and not fault.act and fault.inside not in ("memory", "clock"):
                log.injected = max(log.attaching.values())
        hanging = [names.index(entry.host) for entry in watch.running]
        if hanging:
            _log_hanging(hanging, control, log)
    finally:
        for rank in control.pids:
            if _alive(control.pids[rank]):
                control.signal(rank, signal.SIGCONT)
        watch.end_all()
        watch.drain()
        watch.close()
    return hanging


def _log_hanging(hanging: list[int], control: LabControl, log: JobLog) -> None:
    for rank in hanging:
        stack = Path(f"/proc/{control.pids.get(rank, 0)}/wchan")
        log.output.append(f"rank {rank} still runs" + (f" ({stack.read_text()})" if stack.exists() else ""))


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def leftovers(control: LabControl, emulator: int, files: list[Path]) -> list[str]:
    """What the job left on this machine: processes, members of its namespaces (and so its sockets), files."""
    found = [f"process {pid}" for pid in (*control.pids.values(), emulator) if _alive(pid)]
    for link in glob.glob("/proc/[0-9]*/ns/net"):
        with contextlib.suppress(OSError):
            if os.readlink(link) in control.namespaces:
                found.append(f"{link.split('/')[2]} in a host's namespace")
    records = state_folder().glob(f"{os.getpid()}-{emulator}.*")
    return found + [f"file {path}" for path in (*files, *records)]


def evaluate(case: Case, log: JobLog, hanging: list[int], left: tuple[str, ...], lab: str) -> Outcome:
    all_ranks = set(range(len(case.network.ranks)))
    affected = {case.fault.rank, *case.fault.also}
    survivors = all_ranks - (affected if case.expect in ("without", *REJOINING) else set())
    start = log.injected or 0.0
    # A killed rank reports nothing; every other rank must.
    silenced = {case.fault.rank} if case.fault.rank not in log.failed and case.fault.rank not in hanging else set()
    errors = {rank: text for rank, (_, text) in sorted(log.failed.items())}
    times = sorted(at - start for rank, (at, _) in log.failed.items() if rank in survivors)
    recovered = pause = lost = None
    if case.expect != "stops":
        recovered, pause = _pause(log, survivors, start)
        finished = sum(survivors <= set(ranks) for ranks in log.steps.values())
        lost = case.steps - finished
    back, missed = _rejoined(case, log) if case.expect in REJOINING else (None, None)
    if case.expect in REJOINING:
        times = sorted(at - start for at, rank, peer in log.losses if rank in survivors and peer == case.fault.rank)
    problem = ""
    if log.injected is None:
        problem = "the fault was not injected"
    elif hanging:
        problem = f"ranks {hanging} hang"
    elif case.expect == "stops":
        silent = all_ranks - set(log.failed) - silenced
        if silent:
            problem = f"ranks {sorted(silent)} did not raise"
        elif not times or times[-1] > case.within:
            problem = f"the last error came after {times[-1]:.1f} s" if times else "no rank raised"
    elif survivors - set(log.trained):
        problem = f"ranks {sorted(survivors - set(log.trained))} did not train to the end"
    elif case.expect in REJOINING:
        problem = _rejoin_problem(case, log, back)
    elif recovered is not None and recovered > case.within:
        problem = f"recovery took {recovered:.1f} s"
    if problem:
        for line in log.output[-40:]:
            print(f"    {line}", file=sys.stderr)
    return Outcome(
        case.name, problem or "as promised", (times[0], times[-1]) if times else None, recovered, pause, lost,
        log.same, errors, left, lab, log.known, back, missed,
    )  # fmt: skip


def _rejoined(case: Case, log: JobLog) -> tuple[float | None, int]:
    """Seconds from the end of the fault until its rank had rejoined, and the number of steps it missed.

    Its last step before the gap may be one that only it finished: the others repeated it without it.
    """
    returned = case.fault.also if case.expect == "failover" else (*case.fault.also, case.fault.rank)
    for rank in returned:
        finished = sorted(step for step, ranks in log.steps.items() if rank in ranks)
        gap = next((earlier for earlier, later in itertools.pairwise(finished) if later > earlier + 1), None)
        if gap is not None:
            log.steps[gap].pop(rank)
    backs = [at for at, by, peer in log.backs if by == peer and by in returned]
    found = backs[0] - log.undone if backs and log.undone is not None else None
    return found, case.steps - len(finished)


def _rejoin_problem(case: Case, log: JobLog, back: float | None) -> str:
    affected = set(case.fault.also) | ({case.fault.rank} if case.expect == "rejoins" else set())
    if back is None or not log.trained.keys() >= affected:
        return f"rank {case.fault.rank} did not rejoin"
    # At the end the ranks leave one after another; that is not a loss.
    mistaken = {peer for _, by, peer in log.losses if not {by, peer} & {case.fault.rank, *case.fault.also}}
    if mistaken:
        return f"ranks {sorted(mistaken)} were reported lost by mistake"
    return f"rejoining took {back:.1f} s" if back > case.within else ""


def _pause(log: JobLog, survivors: set[int], start: float) -> tuple[float | None, float | None]:
    """The end of the longest pause after the fault, and its length."""
    finished = sorted(
        max(ranks[rank][0] for rank in survivors) for ranks in log.steps.values() if survivors <= set(ranks)
    )
    gaps = [(later - earlier, later) for earlier, later in itertools.pairwise(finished) if later > start]
    if not gaps:
        return None, None
    pause, end = max(gaps)
    return end - start, pause
