"""LTP in the lab, against kernel TCP on the same links in the same run.

    python benchmarks/ltp_lab.py clean|grid|incast|fair|ablation|soak [--json FILE] [--help]

clean     one sender, one receiver, no loss: goodput against the link's rate, processor time per byte
grid      8 workers and a server under loss: time of a step (up, add, down) for LTP, TCP CUBIC, TCP BBR
incast    8 -> 1 into a shallow queue: median and 99th percentile of a transfer's time
fair      two LTP jobs on one link; LTP beside one TCP CUBIC flow
ablation  Early Close on and off, in the same grid cells
soak      minutes of random loss, delay and rate; every byte compared, memory recorded
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradwire.lab import Lab
from gradwire.network import Burst, Change, LinkSpec, Network
from gradwire.network.network import Link, as_hosts, both, star
from gradwire.units import Bytes, Rate, Seconds

NODE = Path(__file__).with_name("ltp_node.py")
WORKERS = 8
SYSTEMS = (("ltp", "bbr"), ("tcp", "cubic"), ("tcp", "bbr"))
LOSSES = (0.001, 0.005, 0.01, 0.02, 0.05)
RTTS = (0.001, 0.020, 0.100)
# Ethernet, IPv4, UDP and LTP's own bytes around 1472 - 28 - 11 of payload in a 1500-byte packet.
LTP_EFFICIENCY = 1433 / 1538
TCP_EFFICIENCY = 1448 / 1538


# The key of a row; a row measured again replaces the old one.
KEYS = ("link_mbit", "loss", "bursty", "rtt", "system", "tolerance", "queue_bdp", "first", "second", "leg", "rank")


class Rows(list[dict[str, Any]]):
    """Rows of one case. Each is printed and, with a file, written at once: an interrupted run keeps its rows."""

    def __init__(self, path: Path | None) -> None:
        super().__init__()
        self._path = path

    def add(self, row: dict[str, Any]) -> None:
        self.append(row)
        print({key: value for key, value in row.items() if key != "counters"}, flush=True)
        if self._path is None:
            return
        old = json.loads(self._path.read_text()) if self._path.is_file() else []
        kept = [other for other in old if any(other.get(key) != row.get(key) for key in KEYS)]
        ordered = sorted([*kept, row], key=lambda r: [str(r.get(key, "")) for key in ("rtt", "loss", "bursty")])
        self._path.write_text(json.dumps(ordered if "rtt" in row else [*kept, row], indent=1) + "\n")


class Nodes:
    """The node processes of a lab, and a control connection to each."""

    def __init__(self, lab: Lab, lines: dict[int, Any]) -> None:
        self._lab, self._lines = lab, lines
        self.addresses = [lab.address(host.name) for host in lab.network.hosts]

    def ask(self, orders: dict[int, dict[str, Any]], timeout: float) -> dict[int, dict[str, Any]]:
        """Send orders to some hosts at once; return all answers."""
        for rank, order in orders.items():
            self._lines[rank].write(json.dumps({**order, "addresses": self.addresses}) + "\n")
            self._lines[rank].flush()
        answers: dict[int, dict[str, Any]] = {}
        threads = [
            threading.Thread(target=lambda rank=rank: answers.update({rank: json.loads(self._lines[rank].readline())}))
            for rank in orders
        ]
        for thread in threads:
            thread.daemon = True
            thread.start()
        deadline = time.monotonic() + timeout
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        missing = sorted(set(orders) - set(answers))
        errors = [f"host {rank}: {answer['error']}" for rank, answer in answers.items() if "error" in answer]
        if missing or errors:
            raise RuntimeError("; ".join([*errors, *(f"host {rank} did not answer" for rank in missing)]))
        return answers

    def ask_all(self, order: dict[str, Any], timeout: float) -> dict[int, dict[str, Any]]:
        return self.ask(dict.fromkeys(range(len(self.addresses)), order), timeout)


@contextmanager
def nodes(network: Network) -> Iterator[tuple[Lab, Nodes]]:
    with tempfile.TemporaryDirectory() as folder, Lab(network) as lab, socket.socket(socket.AF_UNIX) as listener:
        path = f"{folder}/line"
        listener.bind(path)
        listener.listen(64)
        listener.settimeout(60)
        processes, lines = [], {}
        try:
            for rank, host in enumerate(network.hosts):
                processes.append(lab.spawn(host.name, [sys.executable, str(NODE), str(rank), path]))
            for _ in network.hosts:
                file = listener.accept()[0].makefile("rw")
                lines[int(file.readline())] = file
            yield lab, Nodes(lab, lines)
        finally:
            for line in lines.values():
                line.close()
            for process in processes:
                process.process.kill()
                process.process.wait(10)


def spec(mbit: float, rtt: float = 0.0, **more: Any) -> LinkSpec:
    return LinkSpec(Rate.from_mbit(mbit), Seconds(rtt / 2), **more)


def pair(mbit: float, rtt: float, queue: int | None = None) -> Network:
    there = spec(mbit, rtt, queue=Bytes(queue) if queue else None)
    return Network("pair", as_hosts("ab"), both("a", "b", there, there))


def server_star(worker_mbit: float, server_mbit: float, queue: int | None = None) -> Network:
    hosts = as_hosts(["server", *(f"w{i}" for i in range(WORKERS))])
    size = Bytes(queue) if queue else None

    def access(host: Any) -> tuple[LinkSpec, LinkSpec]:
        mbit = server_mbit if host.name == "server" else worker_mbit
        return spec(mbit), spec(mbit, queue=size if host.name == "server" else None)

    return Network("star", hosts, star(hosts, access), routers=("switch",), congestion="cubic")


def selected(options: argparse.Namespace, systems: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [system for system in systems if not options.system or " ".join(system) in options.system]


def clean(options: argparse.Namespace) -> None:
    rows = Rows(options.json)
    for mbit in options.mbit or (100.0, 1000.0):
        with nodes(pair(mbit, 0.002)) as (_, group):
            for kind, congestion in selected(options, (*SYSTEMS, ("ltp", "cubic"))):
                order = {"do": "stream" if kind == "ltp" else "tcp_stream", "congestion": congestion, "size": 1 << 20}
                order["seconds"] = options.seconds
                answers = group.ask(
                    {0: {**order, "peer": 1, "sends": True}, 1: {**order, "peer": 0, "sends": False}}, 90
                )
                rate = answers[1]["bytes"] * 8 / answers[1]["seconds"] / 1e6
                share = LTP_EFFICIENCY if kind == "ltp" else TCP_EFFICIENCY
                giga = answers[1]["bytes"] / 1e9
                rows.add({
                    "link_mbit": mbit, "system": f"{kind} {congestion}", "goodput_mbit": rate,
                    "of_link_after_headers": rate / (mbit * share),
                    "cpu_s_per_gb_sender": answers[0]["cpu"] / giga, "cpu_s_per_gb_receiver": answers[1]["cpu"] / giga,
                })  # fmt: skip


def step_seconds(answers: dict[int, dict[str, Any]], warm: int) -> tuple[float, bool]:
    """Seconds per step of the slowest worker after the first `warm` steps, and whether there was such a step."""
    done = min(len(answers[rank]["steps"]) for rank in range(1, WORKERS + 1))
    if done <= warm:
        return max(answer["elapsed"] for answer in answers.values()) / (done + 1), False
    slowest = max(statistics.mean(answers[rank]["steps"][warm:done]) for rank in range(1, WORKERS + 1))
    return slowest, True


def first_step(answers: dict[int, dict[str, Any]]) -> float | None:
    """Of the slowest worker: connections are open, but the path is not yet measured."""
    firsts = [answers[rank]["steps"][:1] for rank in range(1, WORKERS + 1)]
    return max(first[0] for first in firsts) if all(firsts) else None


def cell(lab: Lab, loss: float, rtt: float, bursty: bool) -> None:
    """Loss and delay on the workers' links, half of the round trip each way."""
    burst = Burst(enter=loss / (5 * (1 - loss)), leave=0.2) if bursty else Burst(enter=0.0, leave=1.0)
    for worker in range(WORKERS):
        for link in (f"w{worker}->switch", f"switch->w{worker}"):
            lab.apply(Change(Seconds(0), link, delay=Seconds(rtt / 2), loss=0.0 if bursty else loss, burst=burst))


def grid(options: argparse.Namespace) -> None:
    rows = Rows(options.json)
    systems = selected(options, SYSTEMS)
    with nodes(server_star(100, 1000)) as (lab, group):
        for rtt in options.rtt or RTTS:
            for loss in options.loss or LOSSES:
                cell(lab, loss, rtt, options.bursty)
                for kind, congestion in systems:
                    order = {"do": "rounds", "kind": kind, "congestion": congestion, "steps": options.steps}
                    order |= {"size": options.size, "limit": options.limit, "tolerance": options.tolerance}
                    answers = group.ask_all(order, 3 * options.limit + 70)
                    seconds, finished = step_seconds(answers, options.warm)
                    lost = sum(missing for _, missing in answers[0]["ups"])
                    total = options.size * max(1, len(answers[0]["ups"]))
                    rows.add({
                        "loss": loss, "bursty": options.bursty, "rtt": rtt, "system": f"{kind} {congestion}",
                        "step_s": seconds, "first_step_s": first_step(answers), "finished": finished,
                        "steps": min(len(answers[rank]["steps"]) for rank in range(1, WORKERS + 1)),
                        "cpu_s": sum(answer["cpu"] for answer in answers.values()),
                        "missing": lost / total if kind == "ltp" else 0.0, "tolerance": options.tolerance,
                    })  # fmt: skip


def incast(options: argparse.Namespace) -> None:
    rows = Rows(options.json)
    with nodes(server_star(1000, 1000, queue=64 * 1024)) as (lab, group):
        cell(lab, 0.0, 0.001, False)
        for kind, congestion in SYSTEMS:
            order = {"do": "rounds", "kind": kind, "congestion": congestion, "steps": options.steps, "down": False}
            order |= {"size": options.size, "limit": options.limit}
            answers = group.ask_all(order, 3 * options.limit + 70)
            # The first rounds probe the rate of the path; they are left out for every system.
            times = sorted(t for r in range(1, WORKERS + 1) for t, _ in answers[r]["ups"][5:])
            p50, p99 = statistics.median(times), times[int(0.99 * (len(times) - 1))]
            rows.add({"system": f"{kind} {congestion}", "transfers": len(times),
                      "asked": WORKERS * (options.steps - 5), "p50_s": p50, "p99_s": p99,
                      "ratio": p99 / p50})  # fmt: skip


def fair(options: argparse.Namespace) -> None:
    """Senders a and b, receivers c and d, one 50 Mbit/s link between two routers; a queue of one BDP or four."""
    rows = Rows(options.json)
    for depth in (1, 4):
        queue = Bytes(int(50e6 / 8 * 0.02 * depth))
        edge, trunk = spec(1000, 0.0), spec(50, 0.02, queue=queue)
        hosts = as_hosts("abcd")
        links: list[Link] = []
        for host, router in (("a", "r"), ("b", "r"), ("c", "s"), ("d", "s")):
            links += both(host, router, edge, edge)
        network = Network(
            "dumbbell", hosts, (*links, *both("r", "s", trunk, trunk)), routers=("r", "s"), congestion="cubic"
        )
        with nodes(network) as (_, group):
            for other in ("ltp", "tcp"):
                order = {"do": "stream", "congestion": "bbr", "size": 200_000, "seconds": options.seconds}
                second = order if other == "ltp" else {**order, "do": "tcp_stream", "congestion": "cubic"}
                orders = {0: {**order, "peer": 2, "sends": True}, 2: {**order, "peer": 0, "sends": False}}
                orders |= {1: {**second, "peer": 3, "sends": True}, 3: {**second, "peer": 1, "sends": False}}
                answers = group.ask(orders, options.seconds + 90)
                rates = [answers[rank]["bytes"] * 8 / answers[rank]["seconds"] / 1e6 for rank in (2, 3)]
                rows.add({"queue_bdp": depth, "first": "ltp bbr", "second": f"{other} {second['congestion']}",
                          "mbit": rates, "share_of_first": rates[0] / sum(rates)})  # fmt: skip


def ablation(options: argparse.Namespace) -> None:
    """Tolerance 1 turns Early Close off: every byte must arrive."""
    options.system = ["ltp bbr"]
    for tolerance in (0.98, 1.0):
        options.tolerance = tolerance
        grid(options)


def soak(options: argparse.Namespace) -> None:
    rng = random.Random(options.leg)
    with nodes(pair(200, 0.01)) as (lab, group):
        order = {"do": "soak", "seconds": 60 * options.minutes, "seed": 10 + options.leg}
        answers: dict[int, dict[str, Any]] = {}
        worker = threading.Thread(target=lambda: answers.update(group.ask_all(order, 60 * options.minutes + 120)))
        worker.start()
        changes = 0
        while worker.is_alive():
            delay, rate = Seconds(rng.uniform(0, 0.05)), Rate.from_mbit(rng.uniform(20, 300))
            lab.apply(Change(Seconds(0), "*", rate=rate, delay=delay, loss=rng.choice([0, 0.001, 0.01, 0.03, 0.08])))
            changes += 1
            worker.join(2.0)
    rows = Rows(options.json)
    for rank, answer in sorted(answers.items()):
        memory = answer.pop("rss_mb")
        quarter = max(1, len(memory) // 4)
        halves = [statistics.mean(memory[quarter : 2 * quarter]), statistics.mean(memory[-quarter:])]
        rows.add({"leg": options.leg, "rank": rank, "minutes": options.minutes, "changes": changes, **answer,
                  "rss_second_quarter_mb": halves[0], "rss_last_quarter_mb": halves[1]})  # fmt: skip


CASES = {"clean": clean, "grid": grid, "incast": incast, "fair": fair, "ablation": ablation, "soak": soak}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--size", type=int, default=1_000_000, help="bytes each worker sends in a step")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--limit", type=float, default=15.0, help="seconds after which a cell is ended")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of a stream")
    parser.add_argument("--minutes", type=float, default=10.0, help="length of the soak")
    parser.add_argument("--leg", type=int, default=1, help="soak: number of this part, also its seed")
    parser.add_argument("--tolerance", type=float, default=0.98)
    parser.add_argument("--bursty", action="store_true", help="losses in bursts of five packets on average")
    parser.add_argument("--loss", type=float, action="append", help="only these loss rates")
    parser.add_argument("--rtt", type=float, action="append", help="only these round trips, in seconds")
    parser.add_argument("--system", action="append", help='only these, such as "ltp bbr"')
    parser.add_argument("--warm", type=int, default=1, help="first steps of a cell that are not counted, in any system")
    parser.add_argument("--mbit", type=float, action="append", help="clean: only these rates")
    parser.add_argument("--json", type=Path, help="rows are added here; one measured again replaces the old one")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    CASES[options.case](options)
    print(f"{options.case}: {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
