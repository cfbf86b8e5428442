"""DC2's setting: low and high delay variation, against no compression and uniform compression at three ratios.

The milder network has 100 Mbit/s to each host and a steady round trip of 40 ms; the harshest 25 Mbit/s and one-way
delays that vary by 8 ms. Uniform compression is gradwire's own top-k at a fixed share, with its short frames and error
feedback: a stronger baseline than the common top-k hook.
"""

from gradwire.network import Network, parse_network
from harness.case import Case, main


def wandering(name: str, mbit: int, delay_ms: float, jitter_ms: float) -> Network:
    queue = int(mbit * 1e6 / 8 * 0.1)
    text = (
        f'hosts = 4\n[access]\nrate = "{mbit}mbit"\ndelay = "{delay_ms}ms"\njitter = "{jitter_ms}ms"\n'
        f'queue = "{queue}"\n'
    )
    return parse_network(text, name)


CASE = Case(
    "delays",
    "paced:resnet18",
    networks=(wandering("steady-delay", 100, 10, 0.2), wandering("wild-delay", 25, 10, 8)),
    hosts=4,
    contestants=(
        "ddp",
        "gradwire:topk:0.1",
        "gradwire:topk:0.01",
        "gradwire:topk:0.001",
        "gradwire:dc2",
        "gradwire:auto",
    ),
    title="DC2's claim: delay variation",
    repeat=1,
)

if __name__ == "__main__":
    main(CASE)
