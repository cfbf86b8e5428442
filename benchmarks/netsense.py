"""NetSenseML's setting: 8 workers, ResNet-18, 200, 500 and 800 Mbit/s, against AllReduce and TopK-0.1.

All contestants have DDP's default buckets (25 MB): smaller ones overlap more, but 8 ranks share 2 cores here and every
further exchange costs processor time.
"""

from harness.case import Case, main

CASE = Case(
    "netsense",
    "paced:resnet18",
    networks=("netsense-200", "netsense-500", "netsense-800"),
    hosts=8,
    contestants=("ring-bound", "no-sync", "ddp", "topk-0.1", "gradwire:netsense@25", "gradwire:auto@25"),
    title="NetSenseML's table: 8 workers, ResNet-18, static bandwidth",
)

if __name__ == "__main__":
    main(CASE)
