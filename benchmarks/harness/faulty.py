"""Faulty: one training job in the lab, one fault at (rank, step), and what came of it.

1. the job's ranks run on their hosts, telling every step
2. when the fault's rank has told the fault's step, the fault is made; what it undoes later is undone on time
3. everybody is left alone until all have ended or the case's time is up: nobody is helped to die
4. what was told becomes an Outcome; whatever is left of the job on this machine is listed in it
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
# As near to a cut cable as a link model gets: not one packet in a million arrives.
CUT, WHOLE = 0.999999, 0.0
# Seconds until every rank has begun to train: importing torch on two cores takes long.
START = 90.0

# What torch itself puts into TMPDIR when it is imported.
TORCHS = ("torchinductor_root",)

# goes on: all ranks train to the end. stops: every rank raises. without: all but the fault's rank train to the end.
# returns: as without, and the fault's rank is taken back and ends as the others do. heirs: as without, and those that
# share its fate are taken back.
Expectation = Literal["goes on", "stops", "without", "returns", "heirs"]
BACK = ("returns", "heirs")


@dataclass(slots=True)
class Scene:
    """What a fault may do something to: the lab, the ranks' processes, and things to be done later."""

    lab: Lab
    pids: dict[int, int] = field(default_factory=dict)
    namespaces: set[str] = field(default_factory=set)
    later: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    # Starts a rank's process, the first time or anew.
    start: Callable[[int, Mapping[str, str]], None] = lambda rank, env: None

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self.later.append((time.monotonic() + seconds, act))

    def signal(self, rank: int, number: int) -> None:
        os.kill(self.pids[rank], number)

    def lose(self, rank: int, loss: float, ways: tuple[str, ...] = ("->*", "*->")) -> None:
        """Packets from (`->*`) and to (`*->`) the host of a rank are lost at this rate from now on."""
        host = self.lab.network.ranks[rank].name
        for way in ways:
            link = f"{host}{way}" if way.startswith("-") else f"{way}{host}"
            self.lab.apply(Change(Seconds(0), link, loss=loss))

    def part(self, loss: float) -> None:
        """Packets between the two sides of a network are lost at this rate from now on."""
        self.lab.apply(Change(Seconds(0), "left-right", loss=loss))

    def block(self, rank: int, protocol: int) -> None:
        """A firewall at a rank's host: it lets no packet of this IP protocol out."""
        # Classic BPF on the byte that names the protocol: 2 drops, 0 passes. No firewall's modules are needed.
        program = f"4,48 0 0 9,21 0 1 {protocol},6 0 0 2,6 0 0 0"
        host = self.lab.network.ranks[rank].name
        for words in ("qdisc replace dev eth0 clsact", "filter add dev eth0 egress bpf da bytecode"):
            entry = self.lab.spawn(host, ["tc", *words.split(), *([program] if words.startswith("filter") else [])])
            if entry.process.wait(10):
                raise OSError(f"tc {words}: {entry.process.communicate()[0].decode()}")

    def turn(self) -> None:
        due = [entry for entry in self.later if entry[0] <= time.monotonic()]
        self.later = [entry for entry in self.later if entry not in due]
        for _, act in due:
            act()


@dataclass(frozen=True, slots=True)
class Fault:
    """What is done, to whom, when. `act` works from outside, `inside` names what the rank does to itself."""

    name: str
    rank: int = 1
    step: int = 10
    act: Callable[[Scene, int], None] | None = None
    inside: str = ""
    # Ranks that share its fate.
    along: tuple[int, ...] = ()
    # Variables of the fault's rank alone, and a place that exists while the job runs (its path fills `{place}`).
    env: Mapping[str, str] = field(default_factory=dict)
    place: Callable[[], AbstractContextManager[str]] = lambda: nullcontext("")
    # What is done to the network before anybody starts.
    before: Callable[[Scene, int], None] | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """A fault in a job, what must come of it, and in how many seconds."""

    fault: Fault
    way: str
    config: Mapping[str, Any]
    network: Network
    expect: Expectation
    within: float
    steps: int = 60
    pace: float = 0.02
    # The process group's own timeout, which is what holds where nothing but `off` is ever sent.
    patience: float = 8.0

    @property
    def name(self) -> str:
        return f"{self.fault.name}, {self.way}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds count from the fault. `detected`: the first and the last error of a rank that had to raise one;
    `recovered`: the end of the longest pause between steps that all ranks made; `lost` steps are those asked for and
    not made by everybody who went on; `same` says whether all hashes told of a step were equal, at every step."""

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
    # What rank 0 knew of its links at the end, where it says: by peer, the values by name.
    known: dict[int, dict[str, float]] = field(default_factory=dict)
    # Where the fault's rank returns: seconds from the end of the fault until it is taken back, and the steps it missed.
    back: float | None = None
    missed: int | None = None

    @property
    def good(self) -> bool:
        return self.verdict == "as promised" and self.same and not self.left


class Story:
    """Everything the ranks told."""

    def __init__(self) -> None:
        self.steps: dict[int, dict[int, tuple[float, int]]] = {}
        self.failed: dict[int, tuple[float, str]] = {}
        self.trained: dict[int, int] = {}
        self.injected: float | None = None
        self.attaching: dict[int, float] = {}
        self.noise: list[str] = []
        self.known: dict[int, dict[str, float]] = {}
        # Who was said to be lost, or back, when and by whom; and when the fault was undone.
        self.losses: list[tuple[float, int, int]] = []
        self.backs: list[tuple[float, int, int]] = []
        self.undone: float | None = None

    def take(self, told: dict[str, Any]) -> None:
        rank, at = told["rank"], told["at"]
        match told["told"]:
            case "step":
                self.steps.setdefault(told["step"], {})[rank] = (at, told["hash"])
            case "failed":
                self.failed[rank] = (at, f"{told['error']}: {told['text']}")
            case "trained":
                self.trained[rank] = told["hash"]
                if rank == 0:
                    self.known = {int(peer): values for peer, values in told["known"].items()}
            case "peer_lost":
                self.losses.append((at, rank, told["peer"]))
            case "peer_back":
                self.backs.append((at, rank, told["peer"]))
            case "injected":
                self.injected = at
            case "attaching":
                self.attaching[rank] = at

    @property
    def same(self) -> bool:
        finals = len(set(self.trained.values())) <= 1
        return finals and all(len({value for _, value in ranks.values()}) == 1 for ranks in self.steps.values())


def run(case: Case, limit: float) -> Outcome:
    """Play one case; `limit` seconds after the fault whoever still runs is ended and counted as hanging."""
    story = Story()
    with tempfile.TemporaryDirectory(prefix="gradwire-fault-") as folder, case.fault.place() as place:
        job = Path(folder) / "job.json"
        job.write_text(json.dumps(_job(case, place)))
        with Lab(case.network) as lab:
            scene = Scene(lab)
            if case.fault.before:
                case.fault.before(scene, case.fault.rank)
            hanging = _play(case, scene, story, job, place, limit)
            emulator, verdict = lab.emulator.pid, lab.stats().verdict
        left = tuple(
            leftovers(
                scene, emulator, [path for path in Path(folder).iterdir() if path != job and path.name not in TORCHS]
            )
        )
    return judge(case, story, hanging, left, verdict)


def _job(case: Case, place: str) -> dict[str, Any]:
    config = json.loads(json.dumps(dict(case.config)).replace("{place}", place))
    fault = case.fault
    return {
        "config": config, "steps": case.steps, "pace": case.pace, "patience": case.patience,
        "rank": fault.rank, "step": fault.step, "inside": fault.inside, "returns": case.expect in BACK,
    }  # fmt: skip


def _play(case: Case, scene: Scene, story: Story, job: Path, place: str, limit: float) -> list[int]:
    """Run the ranks; returns those that had to be ended."""
    fault, lab = case.fault, scene.lab
    names = [host.name for host in lab.network.ranks]

    def heard(host: str, line: str) -> None:
        if not line.startswith(MARK):
            story.noise.append(f"{host}: {line}")
            return
        told = json.loads(line.removeprefix(MARK))
        story.take(told)
        if told["told"] == "begun":
            scene.pids[told["rank"]] = told["pid"]
            scene.namespaces.add(os.readlink(f"/proc/{told['pid']}/ns/net"))
        if fault.act and story.injected is None and told["rank"] == fault.rank and told.get("step") == fault.step:
            story.injected = time.monotonic()
            fault.act(scene, fault.rank)

    watch = ProcessWatcher([], heard)

    def start(rank: int, own: Mapping[str, str]) -> None:
        env = {**os.environ, **lab.rank_env(rank), "TMPDIR": str(job.parent), "PYTHONPATH": str(FOLDER), **own}
        watch.add(lab.spawn(names[rank], [sys.executable, "-m", "harness.fault_job", str(job)], env))

    scene.start = start
    for rank in range(len(names)):
        start(rank, fault.env if rank == fault.rank else {})
    deadline = time.monotonic() + START
    try:
        while watch.running and time.monotonic() < deadline:
            watch.step(0.02)
            scene.turn()
            if story.injected is not None and story.undone is None and not scene.later:
                story.undone = time.monotonic()
            if story.injected is not None:
                deadline = story.injected + limit
            elif len(story.attaching) == len(names) and not fault.act and fault.inside not in ("memory", "clock"):
                story.injected = max(story.attaching.values())
        hanging = [names.index(entry.host) for entry in watch.running]
        if hanging:
            _say_where(hanging, scene, story)
    finally:
        for rank in scene.pids:
            if _alive(scene.pids[rank]):
                scene.signal(rank, signal.SIGCONT)
        watch.end_all()
        watch.drain()
        watch.close()
    return hanging


def _say_where(hanging: list[int], scene: Scene, story: Story) -> None:
    for rank in hanging:
        stack = Path(f"/proc/{scene.pids.get(rank, 0)}/wchan")
        story.noise.append(f"rank {rank} still runs" + (f" ({stack.read_text()})" if stack.exists() else ""))


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def leftovers(scene: Scene, emulator: int, files: list[Path]) -> list[str]:
    """What the job left on this machine: processes, whoever sits in its namespaces (and so its sockets), files."""
    found = [f"process {pid}" for pid in (*scene.pids.values(), emulator) if _alive(pid)]
    for link in glob.glob("/proc/[0-9]*/ns/net"):
        with contextlib.suppress(OSError):
            if os.readlink(link) in scene.namespaces:
                found.append(f"{link.split('/')[2]} in a host's namespace")
    records = state_folder().glob(f"{os.getpid()}-{emulator}.*")
    return found + [f"file {path}" for path in (*files, *records)]


def judge(case: Case, story: Story, hanging: list[int], left: tuple[str, ...], lab: str) -> Outcome:
    everybody = set(range(len(case.network.ranks)))
    struck = {case.fault.rank, *case.fault.along}
    survivors = everybody - (struck if case.expect in ("without", *BACK) else set())
    start = story.injected or 0.0
    # A killed rank says nothing; one that could speak must.
    mute = {case.fault.rank} if case.fault.rank not in story.failed and case.fault.rank not in hanging else set()
    errors = {rank: text for rank, (_, text) in sorted(story.failed.items())}
    times = sorted(at - start for rank, (at, _) in story.failed.items() if rank in survivors)
    recovered = pause = lost = None
    if case.expect != "stops":
        recovered, pause = _pause(story, survivors, start)
        made = sum(survivors <= set(ranks) for ranks in story.steps.values())
        lost = case.steps - made
    back, missed = _return(case, story) if case.expect in BACK else (None, None)
    if case.expect in BACK:
        times = sorted(at - start for at, rank, peer in story.losses if rank in survivors and peer == case.fault.rank)
    problem = ""
    if story.injected is None:
        problem = "the fault was never made"
    elif hanging:
        problem = f"ranks {hanging} hang"
    elif case.expect == "stops":
        silent = everybody - set(story.failed) - mute
        if silent:
            problem = f"ranks {sorted(silent)} did not raise"
        elif not times or times[-1] > case.within:
            problem = f"the last error came after {times[-1]:.1f} s" if times else "no rank raised"
    elif survivors - set(story.trained):
        problem = f"ranks {sorted(survivors - set(story.trained))} did not train to the end"
    elif case.expect in BACK:
        problem = _unreturned(case, story, back)
    elif recovered is not None and recovered > case.within:
        problem = f"going on took {recovered:.1f} s"
    if problem:
        for line in story.noise[-40:]:
            print(f"    {line}", file=sys.stderr)
    return Outcome(
        case.name, problem or "as promised", (times[0], times[-1]) if times else None, recovered, pause, lost,
        story.same, errors, left, lab, story.known, back, missed,
    )  # fmt: skip


def _return(case: Case, story: Story) -> tuple[float | None, int]:
    """When the fault's rank was itself again, counted from the end of the fault, and how many steps it has not made.

    Its last step before the gap may be one that only it ended: the others did it again without it.
    """
    returned = case.fault.along if case.expect == "heirs" else (*case.fault.along, case.fault.rank)
    for rank in returned:
        made = sorted(step for step, ranks in story.steps.items() if rank in ranks)
        gap = next((earlier for earlier, later in itertools.pairwise(made) if later > earlier + 1), None)
        if gap is not None:
            story.steps[gap].pop(rank)
    backs = [at for at, by, peer in story.backs if by == peer and by in returned]
    found = backs[0] - story.undone if backs and story.undone is not None else None
    return found, case.steps - len(made)


def _unreturned(case: Case, story: Story, back: float | None) -> str:
    struck = set(case.fault.along) | ({case.fault.rank} if case.expect == "returns" else set())
    if back is None or not story.trained.keys() >= struck:
        return f"rank {case.fault.rank} did not come back"
    # At the end everybody leaves, one after the other: that is no loss.
    mistaken = {peer for _, by, peer in story.losses if not {by, peer} & {case.fault.rank, *case.fault.along}}
    if mistaken:
        return f"ranks {sorted(mistaken)} were taken for lost"
    return f"taking it back took {back:.1f} s" if back > case.within else ""


def _pause(story: Story, survivors: set[int], start: float) -> tuple[float | None, float | None]:
    """When the longest pause after the fault ended, and how long it was."""
    made = sorted(
        max(ranks[rank][0] for rank in survivors) for ranks in story.steps.values() if survivors <= set(ranks)
    )
    gaps = [(later - earlier, later) for earlier, later in itertools.pairwise(made) if later > start]
    if not gaps:
        return None, None
    pause, end = max(gaps)
    return end - start, pause
