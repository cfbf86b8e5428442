"""Suite: the cases that make up the published results, each with the question it answers and its time budget.

A case whose lab can be dilated is run again at twice the factor while its lab did not keep up (`dilates`); others are
marked. Arguments of a full run repeat three interleaved rounds; those of a quick one only show that the case runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class SuiteCase:
    """`full` and `quick` are arguments of `script`; budgets are minutes for one try at dilation 1."""

    name: str
    question: str
    script: str
    full: tuple[str, ...]
    quick: tuple[str, ...] = ("--quick",)
    minutes: float = 30.0
    quick_minutes: float = 3.0
    dilates: bool = True
    needs_data: bool = False


PEERS: Final = "ring-bound,no-sync,ddp,fp16-hook,powersgd-r1,powersgd-r4,topk-0.01,torchft,hivemind-fp16,gradwire:auto"

SUITE: Final = (
    SuiteCase(
        "peers",
        "how fast is a step against plain DDP, torch's hooks, torchft and hivemind?",
        "peers.py",
        ("--repeat", "3", "--contestants", PEERS),
        ("--quick", "--contestants", "ring-bound,no-sync,ddp,fp16-hook,gradwire:auto"),
        minutes=60,
    ),
    SuiteCase(
        "compressors",
        "what does each fixed level gain on a slow and on a fast network?",
        "compressors.py",
        ("--repeat", "3"),
        ("--quick", "--contestants", "ring-bound,no-sync,ddp,gradwire:int8,gradwire:topk:0.01+int8"),
        minutes=60,
    ),
    SuiteCase(
        "netsense",
        "NetSenseML's static cells: 9.84x of AllReduce at the worst bandwidth",
        "netsense.py",
        ("--repeat", "3", "--workload", "paced:resnet18", "--workload", "paced:vgg16"),
        ("--quick", "--net", "netsense-200", "--contestants", "ring-bound,no-sync,ddp,gradwire:auto@25"),
        minutes=90,
    ),
    SuiteCase(
        "netsense-changing",
        "the same while bandwidth changes",
        "netsense_changing.py",
        ("--lasting", "100"),
        ("--nets", "degrading", "--lasting", "4"),
        minutes=60,
        dilates=False,
    ),
    SuiteCase(
        "delays",
        "DC2's claims under delay variation: 41x of none, 5.3x of uniform",
        "delays.py",
        ("--repeat", "3"),
        minutes=60,
        quick_minutes=6,
    ),
    SuiteCase(
        "harmless",
        "is gradwire never slower than plain DDP where the network is fast?",
        "harmless.py",
        ("--repeat", "3"),
        minutes=60,
        quick_minutes=6,
    ),
    SuiteCase(
        "ddp-allreduce",
        "does the lab give plain DDP what a ring can have?",
        "ddp_allreduce.py",
        ("--repeat", "3"),
        minutes=45,
        quick_minutes=6,
    ),
    SuiteCase(
        "plan-lab",
        "NetStorm's claims: 9.2x of a single-server star, 2.6x of pairwise merge",
        "plan_lab.py",
        ("nine",),
        ("nine", "--planners", "star,loadaware", "--divide", "512"),
        minutes=60,
        quick_minutes=6,
        dilates=False,
    ),
    SuiteCase(
        "whole",
        "all parts together on one hard network, and one part left out at a time",
        "whole.py",
        (),
        minutes=90,
        quick_minutes=6,
        dilates=False,
        needs_data=True,
    ),
    SuiteCase(
        "faults",
        "what happens when ranks, links and disks fail, against what is promised",
        "faults.py",
        (),
        minutes=60,
        quick_minutes=10,
        dilates=False,
    ),
)
