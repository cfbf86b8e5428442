"""Plans in the lab: real transfers over emulated links, all planners on the same network.

    python benchmarks/plan_lab.py nine        the 9-site network, all planners, against a star
    python benchmarks/plan_lab.py redrawn     the same, with new random rates every 20 s
    python benchmarks/plan_lab.py aws         ten cloud regions, against gloo's ring
    python benchmarks/plan_lab.py drop        a link falls to a tenth of its rate during training
    python benchmarks/plan_lab.py ablation    compression and load-aware packing, one at a time
    python benchmarks/plan_lab.py sides       side routes on and off, on ten cloud regions

Everything is scaled down so that two cores can run all hosts: the links of the nine sites to a quarter of their rate,
the gradient to a 64th of AlexNet's (--divide), so that a step takes a sixteenth of the real time.
With --out DIR the result is added to DIR/plan-lab.json; docs/results/plan-lab.md describes docs/results/plan-lab.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradwire.lab import Lab
from gradwire.network import Change, Network, preset
from gradwire.plan.job import ReductionJob
from gradwire.plan.planners.registry import make_plan
from gradwire.simulate.compare import simulate
from gradwire.simulate.models import gradient_bytes
from gradwire.simulate.underlay import matrix_of
from gradwire.tree.partition import chunk_for
from gradwire.units import Rate, Seconds
from harness.case import command
from harness.facts import machine_facts

WORKER = Path(__file__).with_name("plan_lab_worker.py")
# As in the published systems: between members without a direct link, routers forward the packets.
BY_ROUTERS = ("star", "sharded", "kary", "ring", "pairwise", "hierarchy")
SLOWED = 4.0
ORDER = ("loadaware", "fapt", "fapt1", "pairwise", "sharded", "ring", "kary", "star")


def contestant(
    planner: str, net: Path, level: str = "off", *, name: str = "", seconds: float = 6.0, most: int = 4, **planning: Any
) -> dict[str, Any]:
    settings = {"net": str(net), "relay": planner not in BY_ROUTERS, "aware": False, "probe": False, **planning}
    transport = {"kind": "ltp", "tolerance": 1.0}
    config = {"plan": planner, "level": level, "planning": settings, "transport": transport}
    return {"name": name or planner, "config": config, "seconds": seconds, "most": most}


def described(network: Network, folder: Path) -> Path:
    """The network as planners read it, one site per rank."""
    matrix = matrix_of(network)
    sites = [host.name for host in network.ranks]
    links = [
        {"from": sites[i], "to": sites[j], "rate": f"{matrix.rate[i, j] * 8:.0f}bit",
         "rtt": f"{matrix.rtprop[i, j] * 1e3:.3f}ms", "both": False}
        for i in range(matrix.size) for j in range(matrix.size) if matrix.rate[i, j] > 0
    ]  # fmt: skip
    path = folder / "net.json"
    path.write_text(json.dumps({"sites": sites, "links": links}))
    return path


def run(network: Network, contestants: list[dict[str, Any]], nbytes: int, folder: Path) -> Iterator[dict[str, Any]]:
    """The results that rank 0 reports."""
    spec = folder / "spec.json"
    spec.write_text(json.dumps({"numel": nbytes // 4, "contestants": contestants}))
    found: list[dict[str, Any]] = []

    def on_line(host: str, line: str) -> None:
        if line.startswith("RESULT "):
            found.append(json.loads(line.removeprefix("RESULT ")))
            print(summary(found[-1]), flush=True)
        elif line.strip():
            print(f"{host}: {line}", flush=True)

    with Lab(network) as lab:
        result = lab.run([sys.executable, str(WORKER), str(spec)], timeout=280, on_line=on_line)
    print(f"lab: code {result.code}, {result.seconds:.0f} s, {result.stats.verdict}", flush=True)
    yield from found


def summary(result: dict[str, Any]) -> str:
    times = [step["seconds"] for step in result["steps"][1:]]
    first = result["steps"][0]["seconds"]
    return f"{result['name']:28s} {statistics.median(times):8.3f} s a step ({len(times)} steps, warm-up {first:.3f})"


def expected(network: Network, planner: str, nbytes: int) -> dict[str, float]:
    """What cost model and simulator say of the same plan on the same links."""
    matrix, job = matrix_of(network), ReductionJob(nbytes, chunk_for(nbytes))
    plan = make_plan(matrix, job, planner)
    simulated = simulate(matrix, plan, job)
    return {"predicted": plan.predicted, "simulated": simulated.seconds if simulated else float("nan")}


def slowed(network: Network, by: float) -> Network:
    """The same network with every rate divided, changes included."""
    links = tuple(
        replace(link, spec=replace(link.spec, rate=Rate(float(link.spec.rate) / by))) for link in network.links
    )
    changes = tuple(
        replace(change, rate=Rate(float(change.rate) / by)) if change.rate is not None else change
        for change in network.changes
    )
    return replace(network, links=links, changes=changes)


def nine(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    network = slowed(preset("netstorm9"), SLOWED)
    net = described(network, folder)
    nbytes = gradient_bytes(arguments.model) // arguments.divide
    chosen = [contestant(planner, net) for planner in arguments.planners or ORDER]
    rows = []
    for result in run(network, chosen, nbytes, folder):
        rows.append({**result, **expected(network, result["name"], nbytes)})
    return {"bytes": nbytes, "rows": rows}


def redrawn(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """New random rates every 20 s instead of 180: a ninth of the time, for steps that take a sixteenth."""
    dynamic = preset("netstorm9-dynamic")
    sooner = tuple(replace(change, at=Seconds(float(change.at) / 9)) for change in dynamic.changes)
    network = slowed(replace(dynamic, changes=sooner), SLOWED)
    net = described(network, folder)
    nbytes = gradient_bytes(arguments.model) // arguments.divide
    long: dict[str, Any] = {"seconds": arguments.seconds, "most": 400}
    quick = {"aware": True, "probe": True, "interval": 4.0}
    chosen = [
        contestant("loadaware", net, name="loadaware, aware", **long, **quick),
        contestant("loadaware", net, name="loadaware, first plan kept", **long),
        contestant("fapt", net, name="fapt, aware", **long, **quick),
        contestant("star", net, name="star", **long),
    ]
    # One lab for each: all of them get the same rates.
    return {"bytes": nbytes, "rows": [row for one in chosen for row in run(network, [one], nbytes, folder)]}


def aws(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Ten regions; every rate is divided by twenty, because two cores cannot emulate ten hosts at up to 5 Gbit/s."""
    network = slowed(preset("geo-aws10"), 20)
    net = described(network, folder)
    nbytes = gradient_bytes(arguments.model) // arguments.divide
    chosen: list[dict[str, Any]] = [{"name": "gloo ring (TCP)", "config": None, "seconds": 15.0, "most": 3}]
    chosen += [
        contestant(planner, net)
        for planner in arguments.planners or ("loadaware", "weighted", "sharded", "fapt", "ring", "star")
    ]
    rows = []
    for result in run(network, chosen, nbytes, folder):
        known = expected(network, result["name"], nbytes) if "gloo" not in result["name"] else {}
        rows.append({**result, **known})
    return {"bytes": nbytes, "rows": rows}


def drop(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The busiest link of the plan falls to a tenth of its rate after 30 s."""
    network = slowed(preset("netstorm9"), SLOWED)
    net = described(network, folder)
    nbytes = gradient_bytes(arguments.model) // arguments.divide
    job = ReductionJob(nbytes, chunk_for(nbytes))
    plan = make_plan(matrix_of(network), job)
    reason = plan.reason.partition("of which link ")[2].split()[0]
    source, target = (network.ranks[int(place)].name for place in reason.split("->"))
    link = next(link for link in network.links if (link.source, link.target) == (source, target))
    at = 30.0
    network = replace(network, changes=(Change(Seconds(at), f"{source}->{target}", Rate(float(link.spec.rate) / 10)),))
    long: dict[str, Any] = {"seconds": arguments.seconds, "most": 400}
    chosen = [contestant("loadaware", net, name="aware", **long, aware=True, probe=True, interval=4.0)]
    rows = list(run(network, chosen, nbytes, folder))
    if arguments.both:
        rows += run(network, [contestant("loadaware", net, name="first plan kept", **long)], nbytes, folder)
    return {"bytes": nbytes, "at": at, "link": f"{source}->{target}", "rows": rows}


def ablation(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    network = slowed(preset("netstorm9"), SLOWED)
    net = described(network, folder)
    nbytes = gradient_bytes(arguments.model) // arguments.divide
    chosen = [
        contestant("loadaware", net, name="load-aware, off"),
        contestant("loadaware", net, "fp16", name="load-aware, fp16"),
        contestant("loadaware", net, "int8", name="load-aware, int8"),
        contestant("loadaware", net, "sharedk:0.01+int8", name="load-aware, sharedk:0.01+int8"),
        contestant("fapt", net, name="published trees (not load-aware), off"),
        contestant("sharded", net, name="sharded star, off"),
    ]
    return {"bytes": nbytes, "rows": list(run(network, chosen, nbytes, folder))}


def sides(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Plans whose best paths are congested, and the load-aware plan, which leaves no idle link beside a busy one."""
    network = slowed(preset("geo-aws10"), 20)
    net = described(network, folder)
    nbytes = gradient_bytes(arguments.model) // arguments.divide
    chosen = [
        contestant(
            planner, net, name=f"{planner}, side routes {'on' if side else 'off'}", most=6, side=side, relay=True
        )
        for planner in arguments.planners or ("pairwise", "star", "loadaware")
        for side in (True, False)
    ]
    return {"bytes": nbytes, "rows": list(run(network, chosen, nbytes, folder))}


CASES = {"nine": nine, "redrawn": redrawn, "aws": aws, "drop": drop, "ablation": ablation, "sides": sides}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--model", default="alexnet", help="a model's name or a size such as 40MB")
    parser.add_argument("--divide", type=int, default=64, help="divide the gradient's size by this")
    parser.add_argument("--planners", type=lambda text: text.split(","), default=None)
    parser.add_argument("--seconds", type=float, default=60.0, help="per contestant, in cases of fixed duration")
    parser.add_argument("--both", action="store_true", help="drop: also without re-planning")
    parser.add_argument("--out", type=Path, default=None, help="add the result to plan-lab.json here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = CASES[arguments.case](arguments, Path(folder))
    found |= {"command": command(), "machine": machine_facts()}
    if arguments.out:
        key = arguments.case if arguments.model == "alexnet" else f"{arguments.case} {arguments.model}"
        write(arguments.out, {key: found})


def write(folder: Path, found: dict[str, Any]) -> None:
    """Add a case to the results of earlier runs."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "plan-lab.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | found, indent=1))


if __name__ == "__main__":
    main()
