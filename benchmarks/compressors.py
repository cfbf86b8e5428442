"""Compressors side by side on a slow and a fast LAN, paced ResNet-18, 4 hosts."""

from harness.case import Case, main

CASE = Case(
    "compressors",
    "paced:resnet18",
    networks=("lan100", "lan1g"),
    hosts=4,
    contestants=(
        "ring-bound", "no-sync", "ddp", "fp16-hook", "powersgd-r1", "powersgd-r4", "topk-0.1", "topk-0.01",
        "gradwire:off", "gradwire:fp16", "gradwire:int8", "gradwire:topk:0.1+int8", "gradwire:topk:0.01+int8",
        "gradwire:lowrank:4",
    ),
    title="Compressors on a slow and a fast LAN",
)  # fmt: skip

if __name__ == "__main__":
    main(CASE)
