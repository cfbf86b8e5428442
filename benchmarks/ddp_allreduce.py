"""Plain all-reduce of ResNet-18's gradients over 8 hosts at 100, 200, 500 Mbit/s and 1 Gbit/s, against the ring bound.

No compute: the whole step is DDP's all-reduce. `ddp` has torch's 25 MB buckets, `ddp-1mb` many small ones.
"""

from dataclasses import replace

from gradwire.network import Change, Network, preset
from gradwire.units import Rate, Seconds
from harness.case import Case, main

HOSTS = 8


def lan(mbit: float) -> Network:
    """The preset lan1g at another rate."""
    base = preset("lan1g", HOSTS)
    change = Change(Seconds(0), "*", Rate.from_mbit(mbit))
    links = tuple(replace(link, spec=change.applied(link.spec)) for link in base.links)
    return replace(base, name=f"{mbit:g} Mbit/s", links=links)


CASE = Case(
    "ddp-allreduce",
    "paced:resnet18",
    networks=tuple(lan(mbit) for mbit in (100, 200, 500, 1000)),
    hosts=HOSTS,
    contestants=("ring-bound", "ddp", "ddp-1mb"),
    title="Plain DDP's all-reduce of ResNet-18's gradients, 8 hosts",
    compute_ms=0.0,
    repeat=2,
)

if __name__ == "__main__":
    main(CASE)
