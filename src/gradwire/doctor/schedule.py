"""Who measures whom when. In a round every host takes part in at most one transfer, so that no two share a host's link.

The circle method: hold one host fixed, turn the others; n - 1 rounds pair everyone with everyone once.
"""

from __future__ import annotations

Pair = tuple[int, int]


def rounds(count: int) -> list[list[Pair]]:
    """Rounds of disjoint pairs that together hold every unordered pair once."""
    players: list[int | None] = [*range(count)]
    if count % 2:
        players.append(None)  # who meets nobody rests
    size = len(players)
    schedule = []
    for turn in range(size - 1):
        ring = players[1:]
        turned = [players[0], *ring[turn:], *ring[:turn]]
        met = [(turned[i], turned[size - 1 - i]) for i in range(size // 2)]
        schedule.append([(min(a, b), max(a, b)) for a, b in met if a is not None and b is not None])
    return schedule


def transfers(count: int, most: int | None = None) -> list[list[Pair]]:
    """Rounds of directed transfers, each pair there and then back; at most `most` rounds (a sample for large jobs)."""
    directed = []
    for pairs in rounds(count):
        directed += [pairs, [(b, a) for a, b in pairs]]
    return directed if most is None else directed[: max(2, most)]


def target_of(rank: int, pairs: list[Pair]) -> int | None:
    """Whom `rank` sends to in this round."""
    return next((b for a, b in pairs if a == rank), None)
