"""As good as hindsight: `auto` against every fixed rung of its ladder, over a grid of bandwidths and round trips."""

from gradwire.decide.ladder import LADDER
from gradwire.link import Network, parse_network
from harness.case import Case, main


def cell(mbit: int, trip_ms: float) -> Network:
    """Four hosts on one switch; a queue of 50 ms, as home and office routers have."""
    queue = max(64_000, int(mbit * 1e6 / 8 * 0.05))
    text = f'hosts = 4\n[access]\nrate = "{mbit}mbit"\ndelay = "{trip_ms / 4}ms"\nqueue = "{queue}"\n'
    return parse_network(text, f"{mbit}mbit-{trip_ms:g}ms")


CASE = Case(
    "hindsight",
    "paced:resnet18",
    networks=tuple(cell(mbit, trip) for mbit in (50, 200, 800) for trip in (1, 20, 100)),
    hosts=4,
    contestants=("no-sync", "ddp", *(f"gradwire:{rung.level}" for rung in LADDER[1:]), "gradwire:auto"),
    title="auto against the best fixed level in hindsight",
)

if __name__ == "__main__":
    main(CASE)
