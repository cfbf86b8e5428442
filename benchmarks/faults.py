"""Faults by (rank, step) in the lab: for every case of the schedule, the required and the actual outcome.

    python benchmarks/faults.py [NAME ...] [--out docs/results] [--list]

A NAME is a prefix of a case's name ("kill", "kill a worker, ltp"). Each case is a separate job: four hosts at
100 Mbit/s train a small network on handwritten digits. faults.json collects the results by case; faults.md is generated
from it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Any

from gradwire.network import preset
from harness.facts import machine_facts
from harness.fault_run import CUT, NO_LOSS, Case, Expectation, Fault, LabControl, Outcome, run

HOSTS = 4
# Short, so that cases are short: a step may take TIMEOUT seconds, a silent LTP peer is lost after DEAD.
TIMEOUT, DEAD, CONNECT = 8.0, 4.0, 4.0
# What a busy machine may add to any promised time.
SLACK = 5.0


def config(level: str, kind: str = "group", **rest: Any) -> dict[str, Any]:
    transport = {"kind": kind, "timeout": TIMEOUT, "dead_after": DEAD, "connect": CONNECT}
    return {"level": level, "transport": transport, **rest}


def with_default_timeouts(way: dict[str, Any]) -> dict[str, Any]:
    """The same with the default timeouts."""
    return {**way, "transport": {"kind": way["transport"]["kind"]}}


WAYS: dict[str, dict[str, Any]] = {
    "off": config("off"),
    "int8": config("int8"),
    "auto": config("auto"),
    "ltp": config("auto", "ltp"),
    "plan": config("int8", "ltp", plan="loadaware"),
    "elastic": config("int8", "ltp", plan="loadaware", planning={"elastic": True}),
    "returning": config("int8", "ltp", plan="loadaware", planning={"elastic": True, "rejoin": 60.0}),
    "returning-tcp": config("int8", "tcp", plan="loadaware", planning={"elastic": True, "rejoin": 60.0}),
}
ABOUT = {
    "off": "plain DDP's all-reduce through gradwire, on gloo",
    "int8": "fixed level, exchanges on gloo",
    "auto": "the controller chooses, on gloo",
    "ltp": "the controller chooses, on LTP",
    "plan": "int8 over load-aware trees on LTP",
    "elastic": "the same, and the others continue without a lost rank",
    "returning": "the same, with SGD and momentum, and `handle.hand_over(optimizer)`: the lost rank rejoins",
    "returning-tcp": "the same over TCP",
}


# ---- faults ----------------------------------------------------------------------------------------------------------
def kill(control: LabControl, rank: int) -> None:
    control.signal(rank, SIGKILL)


def kill_and_start(control: LabControl, rank: int) -> None:
    """A spot instance is terminated, and replaced three seconds later."""
    control.signal(rank, SIGKILL)
    control.after(3.0, lambda: control.start(rank, {"GRADWIRE_REJOIN": "1"}))


def stop_for(seconds: float) -> Any:
    def act(control: LabControl, rank: int) -> None:
        control.signal(rank, SIGSTOP)
        control.after(seconds, lambda: control.signal(rank, SIGCONT))

    return act


def lossy(loss: float, seconds: float, ways: tuple[str, ...] = ("->*", "*->")) -> Any:
    def act(control: LabControl, rank: int) -> None:
        control.set_loss(rank, loss, ways)
        control.after(seconds, lambda: control.set_loss(rank, NO_LOSS, ways))

    return act


def partitioned_for(seconds: float) -> Any:
    """The two sides of a network cannot reach each other for a while; inside each side nothing changes."""

    def act(control: LabControl, rank: int) -> None:
        control.partition(CUT)
        control.after(seconds, lambda: control.partition(NO_LOSS))

    return act


def flapping(control: LabControl, rank: int) -> None:
    """Down for half of every second, six times."""
    for second in range(6):
        control.after(second, lambda: control.set_loss(rank, CUT))
        control.after(second + 0.5, lambda: control.set_loss(rank, NO_LOSS))


def no_udp(control: LabControl, rank: int) -> None:
    control.block_protocol(rank, 17)


def no_ping(control: LabControl, rank: int) -> None:
    for each in range(HOSTS):
        control.block_protocol(each, 1)


@contextlib.contextmanager
def tiny_disk() -> Iterator[str]:
    """A file system of 32 KiB: a few hundred events."""
    with tempfile.TemporaryDirectory(prefix="gradwire-disk-") as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32k", "none", folder], check=True, timeout=10)
        try:
            yield folder
        finally:
            subprocess.run(["umount", folder], check=True, timeout=10)


FOREVER = 1e6
KILL = Fault("kill a worker", act=kill)
KILL_COORDINATOR = Fault("kill the coordinator", rank=0, act=kill)
KILL_AND_START = Fault("kill and start anew", act=kill_and_start)
KILL_ROOT = Fault("kill the root", rank=2, act=kill)
STOP = Fault("stop for 2 s", act=stop_for(2.0))
STOP_LONG = Fault("stop for 15 s", act=stop_for(15.0))
SHORT_CUT = Fault("cut for 2 s", act=lossy(CUT, 2.0))
CUT_AND_BACK = Fault("cut for 10 s", act=lossy(CUT, 10.0))
COORDINATOR_CUT = Fault("coordinator cut for 10 s", rank=0, act=lossy(CUT, 10.0))
STOP_AND_BACK = Fault("stop for 10 s", act=stop_for(10.0))
SITE_CUT = Fault("site of two cut for 10 s", rank=2, also=(3,), act=partitioned_for(10.0))
KILL_LEADER = Fault("kill a site's leader", rank=2, also=(3,), act=kill)
LONG_CUT = Fault("cut for good", act=lossy(CUT, FOREVER))
ONE_WAY = Fault("one way cut for 2 s", act=lossy(CUT, 2.0, ("->*",)))
ONE_WAY_LONG = Fault("one way cut for good", act=lossy(CUT, FOREVER, ("->*",)))
FLAPPING = Fault("flapping", act=flapping)
LOSS = Fault("30 % loss for 20 s", act=lossy(0.3, 20.0))
CLOCK = Fault("wall clock jumps 7 h", inside="clock")
DISK = Fault("disk full", inside="none", place=tiny_disk)
MEMORY = Fault("no memory in the encoder", inside="memory")
SECRET = Fault("wrong secret", inside="secret", env={"GRADWIRE_SECRET": "another secret of length"})
RELEASE = Fault("another release", inside="release")
NO_UDP = Fault("firewall drops UDP", inside="firewall", before=no_udp)
NO_PING = Fault("firewall drops ICMP", inside="firewall", before=no_ping)
PULSE = Fault("another layout of pulses", inside="pulse")


def rooted(folder: Path) -> dict[str, Any]:
    """A plan of one tree whose root is rank 2, not the coordinator: rank 2's links are declared the fastest."""
    sites = [f"h{rank}" for rank in range(HOSTS)]
    links = [
        {"from": a, "to": b, "rate": "100mbit" if "h2" in (a, b) else "10mbit", "rtt": "1ms", "both": False}
        for a in sites for b in sites if a != b
    ]  # fmt: skip
    net = folder / "rooted.json"
    net.write_text(json.dumps({"sites": sites, "links": links}))
    return config("int8", "ltp", plan="fapt1", planning={"net": str(net), "aware": False})


LOST = {"off": TIMEOUT, "int8": TIMEOUT, "auto": TIMEOUT, "ltp": 2 * DEAD, "plan": 2 * DEAD}


def case(fault: Fault, way: str, expect: Expectation, within: float, **more: Any) -> Case:
    settings = {"group_timeout": TIMEOUT, "config": WAYS[way], **more}
    return Case(fault, way, network=preset("lan100", HOSTS), expect=expect, within=within + SLACK, **settings)


def two_sites(folder: Path) -> dict[str, Any]:
    """Ranks 0 and 1 at one site, ranks 2 and 3 at another."""
    sites = folder / "sites.json"
    sites.write_text(json.dumps({"left": [0, 1], "right": [2, 3]}))
    way = WAYS["returning"]
    return {**way, "planning": {**way["planning"], "sites": str(sites)}}


def schedule(folder: Path) -> Iterator[Case]:
    """All cases. `within`: a lost peer is detected after TIMEOUT on gloo and after DEAD on LTP, and the ranks that wait
    for the detecting rank learn it at once. A closed connection is detected immediately, but no sooner is promised."""
    yield from lost_ranks(folder)
    yield from bad_links(folder)
    yield from bad_machines()
    yield from mismatched_ranks()


def lost_ranks(folder: Path) -> Iterator[Case]:
    for fault in (KILL, KILL_COORDINATOR):
        for way, seconds in LOST.items():
            yield case(fault, way, "stops", seconds)
        yield case(fault, "elastic", "without", 2 * DEAD)
    root = rooted(folder)
    yield case(KILL_ROOT, "plan", "stops", 2 * DEAD, config=root)
    elastic = {**root, "planning": {**root["planning"], "elastic": True}}
    yield case(KILL_ROOT, "elastic", "without", 2 * DEAD, config=elastic)
    for way in ("auto", "ltp", "plan", "elastic"):
        yield case(STOP, way, "continues", 2.0)
    for way, seconds in LOST.items():
        yield case(STOP_LONG, way, "stops", seconds + 15.0)
    yield case(STOP_LONG, "elastic", "without", 2 * DEAD)


def bad_links(folder: Path) -> Iterator[Case]:
    for way in ("auto", "ltp", "plan"):
        yield case(SHORT_CUT, way, "continues", 2 * 2.0)
        yield case(ONE_WAY, way, "continues", 2 * 2.0)
        yield case(FLAPPING, way, "continues", 6.0 + 4.0)
    for fault in (LONG_CUT, ONE_WAY_LONG):
        for way, seconds in LOST.items():
            yield case(fault, way, "stops", 2 * seconds)
    yield case(LONG_CUT, "elastic", "without", 2 * DEAD)
    for fault in (CUT_AND_BACK, COORDINATOR_CUT, STOP_AND_BACK):
        yield case(fault, "returning", "rejoins", 2 * DEAD, steps=500)
    yield case(CUT_AND_BACK, "returning-tcp", "rejoins", 2 * DEAD, steps=500)
    # Starting a process takes seconds on two cores.
    yield case(KILL_AND_START, "returning", "rejoins", 2 * DEAD + 10.0, steps=900)
    # Meanwhile half of the job continues alone; its steps are slow, so that some are left when the others rejoin.
    ocean = replace(preset("wan-us-eu", HOSTS), name="wan-us-eu")
    sites = {"steps": 220, "step_seconds": 0.05, "config": two_sites(folder)}
    yield replace(case(SITE_CUT, "returning", "rejoins", 2 * DEAD, **sites), network=ocean)
    yield replace(case(KILL_LEADER, "returning", "failover", 2 * DEAD, **sites), network=ocean)
    for way in ("auto", "ltp", "plan"):
        yield case(LOSS, way, "continues", 60.0, config=with_default_timeouts(WAYS[way]), group_timeout=120.0)
    for way in ("ltp", "plan"):
        yield case(NO_UDP, way, "continues", 2 * CONNECT)
    yield case(NO_PING, "ltp", "continues", 2 * CONNECT)


def bad_machines() -> Iterator[Case]:
    for way in ("auto", "ltp", "plan"):
        yield case(CLOCK, way, "continues", 0.0)
    recorded = {**WAYS["ltp"], "record": "{place}", "observe": {"detail": "buckets"}}
    # The disk is full from the first step on, so the time counts from attach.
    yield case(DISK, "ltp", "continues", 2 * CONNECT, config=recorded, steps=200)
    yield case(MEMORY, "int8", "stops", TIMEOUT)
    yield case(MEMORY, "ltp", "stops", 2 * DEAD, config=config("int8", "ltp"))


def mismatched_ranks() -> Iterator[Case]:
    for way in ("ltp", "plan"):
        yield case(SECRET, way, "stops", 2 * CONNECT)
    for way in ("off", "int8", "ltp", "plan"):
        yield case(RELEASE, way, "stops", TIMEOUT)
    for way in ("auto", "ltp"):
        yield case(PULSE, way, "stops", TIMEOUT)


# One fast case of each kind, for every transport; tests/train has more on loopback.
QUICK = (
    "kill a worker, int8", "kill the coordinator, elastic", "cut for 2 s, plan", "one way cut for good, ltp",
    "firewall drops UDP, ltp", "disk full, ltp",
    "no memory in the encoder, int8", "another release, plan",
)  # fmt: skip


def limit(case: Case) -> float:
    """Seconds after which a rank that still runs counts as hanging."""
    return max(1.5 * case.within, case.steps * 0.25) + 10.0


# ---- results ---------------------------------------------------------------------------------------------------------
HEAD = ("fault at (rank, step)", "way", "promised", "result", "detected in, s", "recovered in, s", "steps lost",
        "rejoined in, s", "replicas", "left behind")  # fmt: skip


def row(case: Case, outcome: dict[str, Any]) -> list[str]:
    fault = case.fault
    detected, lost = outcome["detected"], outcome["lost"]
    promise = {
        "continues": "continues", "stops": "every rank raises", "without": "the others continue", "rejoins": "rejoins",
        "failover": "its neighbour leads",
    }[case.expect]  # fmt: skip
    back, missed = outcome.get("back"), outcome.get("missed")
    return [
        f"{fault.name} ({fault.rank}, {fault.step})",
        case.way,
        f"{promise} in {case.within:g} s",
        outcome["verdict"],
        "-" if detected is None else f"{detected[0]:.1f} .. {detected[1]:.1f}",
        "-" if outcome["recovered"] is None else f"{outcome['recovered']:.1f}",
        "-" if lost is None else str(lost),
        "-" if back is None else f"{back:.1f} (missed {missed} steps)",
        "identical" if outcome["same"] else "DIFFER",
        "nothing" if not outcome["left"] else ", ".join(outcome["left"]),
    ]


def page(cases: list[Case], results: dict[str, Any]) -> str:
    rows = [row(case, results["cases"][case.name]) for case in cases if case.name in results["cases"]]
    good = sum(cells[3] == "as promised" for cells in rows)
    machine = results["machine"]
    lines = [
        "# Faults in the middle of training",
        "",
        "    python benchmarks/faults.py --out docs/results",
        "",
        f"{len(rows)} cases, {good} as promised. {HOSTS} hosts at 100 Mbit/s in the lab, handwritten digits, 20 ms of "
        f"compute a step. `transport.timeout` {TIMEOUT:g} s, `dead_after` {DEAD:g} s, `connect` {CONNECT:g} s "
        f"(defaults in the 30 % loss: 120, 15, 30). A promise includes {SLACK:g} s for a busy machine. "
        f"gradwire {machine['revision']}, torch {machine['torch']}, {machine['cores']} cores. Rows of earlier runs are "
        "kept: the revision is the last run's.",
        "",
        "*Detected in*: from the fault to the first and to the last rank that raised, or that reported the loss where "
        "the lost rank rejoins. *Recovered in*: from the fault "
        "to the end of the longest pause in training. *Steps lost*: requested but not finished by all surviving ranks; "
        "where every rank raises, the steps since the last checkpoint are lost. *Rejoined in*: from the end "
        "of the fault until the rank has the others' state; the steps it missed are those made without it. "
        "*Replicas*: a hash of all parameters of every rank at every step. "
        "*Left behind*: processes, members of the hosts' namespaces (and so sockets), files.",
        "",
        f"| {' | '.join(HEAD)} |",
        "|" + "---|" * len(HEAD),
        *(f"| {' | '.join(cells)} |" for cells in rows),
        "",
        "Ways: " + "; ".join(f"`{way}` {about}" for way, about in ABOUT.items()) + ".",
        "",
        "## Error messages",
        "",
        "The error of the lowest rank that raised, by case:",
        "",
    ]
    for case in cases:
        errors = results["cases"].get(case.name, {}).get("errors", {})
        if errors:
            rank, text = min(errors.items(), key=lambda entry: int(entry[0]))
            lines.append(f"- {case.name}: rank {rank}: {text}")
    return "\n".join(lines) + "\n"


def add(folder: Path, cases: list[Case], outcome: Outcome) -> None:
    path = folder / "faults.json"
    results = json.loads(path.read_text()) if path.exists() else {"cases": {}}
    results["machine"] = machine_facts()
    results["cases"][outcome.case] = asdict(outcome)
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    # Read back from the file, so that the page and the file agree.
    (folder / "faults.md").write_text(page(cases, json.loads(path.read_text())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="prefixes of case names; default: all")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--missing", action="store_true", help="only cases without a good result in --out")
    parser.add_argument("--quick", action="store_true", help="one fast case of each kind")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gradwire-faults-") as folder:
        cases = list(schedule(Path(folder)))
        chosen = [case for case in cases if not options.names or case.name.startswith(tuple(options.names))]
        if options.missing and (known := options.out / "faults.json").exists():
            results = json.loads(known.read_text())["cases"]
            chosen = [case for case in chosen if results.get(case.name, {}).get("verdict") != "as promised"]
        if options.quick:
            chosen = [case for case in chosen if case.name in QUICK]
        bad = 0
        for case in chosen:
            if options.list:
                print(f"{case.name:36} {case.expect} within {case.within:g} s")
                continue
            outcome = run(case, limit(case))
            bad += not outcome.good
            print(json.dumps(asdict(outcome)), flush=True)
            if options.out:
                add(options.out, cases, outcome)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
