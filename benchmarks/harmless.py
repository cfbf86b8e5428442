"""Harmless: `auto` on a fast network, against plain DDP, on three models.

    python benchmarks/harmless.py            the lab's 10 Gbit/s links
    python benchmarks/harmless.py --bare     127.0.0.1, without the emulator

On two cores a fast network is limited by the processor: training waits for what gradwire computes. The bare case
therefore has two ranks, one per core; in the other, four ranks share the machine with the emulator.
"""

import sys
from dataclasses import replace

from gradwire.network import parse_network
from harness.case import Case, main

TEN = parse_network('hosts = 4\n[access]\nrate = "10gbit"\ndelay = "25us"\nqueue = "4MB"\n', "10gbit")
BARE = parse_network('hosts = 2\n[access]\ndelay = "0ms"\n', "loopback")

CASE = Case(
    "harmless",
    ("paced:resnet18", "paced:vgg16", "paced:chargpt"),
    networks=(TEN,),
    hosts=4,
    contestants=("no-sync", "ddp", "gradwire:off@25", "gradwire:auto@25"),
    title="Fast networks: auto against plain DDP",
)

if __name__ == "__main__":
    bare = "--bare" in sys.argv
    arguments = [word for word in sys.argv[1:] if word != "--bare"]
    main(replace(CASE, name="harmless-bare", networks=(BARE,), hosts=2, mode="loopback") if bare else CASE, arguments)
