"""Schedule: rounds of transfers. In a round every host takes part in at most one, so that no two share a host's link.

The circle method of round-robin tournaments: keep one host fixed and rotate the others; n - 1 rounds cover all pairs.
"""

from __future__ import annotations

Pair = tuple[int, int]


def rounds(count: int) -> list[list[Pair]]:
    """Rounds of disjoint pairs that together contain every unordered pair once."""
    hosts: list[int | None] = [*range(count)]
    if count % 2:
        hosts.append(None)  # the host paired with None pauses
    size = len(hosts)
    schedule = []
    for turn in range(size - 1):
        ring = hosts[1:]
        rotated = [hosts[0], *ring[turn:], *ring[:turn]]
        pairs = [(rotated[i], rotated[size - 1 - i]) for i in range(size // 2)]
        schedule.append([(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None])
    return schedule


def transfers(count: int, most: int | None = None) -> list[list[Pair]]:
    """Rounds of directed transfers, each pair in both directions; at most `most` rounds (a sample for large jobs)."""
    directed = []
    for pairs in rounds(count):
        directed += [pairs, [(b, a) for a, b in pairs]]
    return directed if most is None else directed[: max(2, most)]


def target_of(rank: int, pairs: list[Pair]) -> int | None:
    """The rank that `rank` sends to in this round."""
    return next((b for a, b in pairs if a == rank), None)
