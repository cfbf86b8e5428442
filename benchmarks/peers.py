"""gradwire's `auto` against its peers on a slow and a fast LAN, paced ResNet-18, 4 hosts: those that are installed."""

from importlib.util import find_spec

from harness.case import Case, main
from harness.contestants import OPTIONAL

INSTALLED = tuple(name for name, package in OPTIONAL.items() if find_spec(package) is not None)
CASE = Case(
    "peers",
    "paced:resnet18",
    networks=("lan100", "lan1g"),
    hosts=4,
    contestants=(
        "ring-bound", "no-sync", "ddp", "ddp-1mb", "fp16-hook", "powersgd-r1", "powersgd-r2", "powersgd-r4",
        "topk-0.01", *INSTALLED, "gradwire:auto",
    ),
    title="gradwire against its peers",
    repeat=2,
)  # fmt: skip

if __name__ == "__main__":
    main(CASE)
