"""Churn result: what the kills of a churn run cost, from what the replicas reported.

A step is useful if its rank is among the contributors of its round: it is in the global weights. Every other step is
lost. What must hold, else `problems` says where it does not:

    all replicas report the same contributors of a round
    weights and buffers of all replicas are equal at every end of a round, also those of a process that joins there
    a process that was not killed loses no step; one that was killed loses steps of one round only, its last one
    no round of a rank is lost twice, and none counts twice
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from harness.churn_run import Life, Log


@dataclass(frozen=True, slots=True)
class ChurnResult:
    """Counts of steps are over all replicas. `possible`: of a run without kills, after as many rounds."""

    replicas: int
    kills: int
    in_exchange: int
    rounds: int
    made: int
    useful: int
    lost: int
    most_lost: int
    possible: int
    boundaries: int
    digests: int
    join_median: float
    join_most: float
    round_median: float
    round_most: float
    seconds: float
    accuracy: float
    problems: tuple[str, ...]


def result_of(log: Log, replicas: int, every: int) -> ChurnResult:
    contributors = {number: min(found) for number, found in log.contributors.items()}
    lost, counted, problems = Counter[tuple[int, int]](), Counter[tuple[int, int]](), _disagreements(log)
    for life in log.lives:
        rounds = Counter((step - 1) // every for step in life.steps)
        without = {number: steps for number, steps in rounds.items() if life.rank not in contributors.get(number, ())}
        counted.update((life.rank, number) for number in rounds.keys() - without.keys())
        lost.update((life.rank, number) for number in without)
        if without and (life.killed is None or set(without) != {max(rounds)}):
            killed = "killed" if life.killed is not None else "not killed"
            problems.append(f"rank {life.rank}, {killed}, lost steps of rounds {sorted(without)}")
    problems += [f"round {number} of rank {rank} was lost twice" for (rank, number), n in lost.items() if n > 1]
    problems += [f"round {number} of rank {rank} counts twice" for (rank, number), n in counted.items() if n > 1]
    made = sum(len(life.steps) for life in log.lives)
    useful = _useful(log, contributors, every)
    joins = [life.joined - life.started for life in log.lives if life.joined is not None and not life.first]
    ends = [at for _, at in sorted(log.ended.items())]
    lengths = [after - before for before, after in pairwise(ends)]
    killed = [life for life in log.lives if life.killed is not None]
    digests = [step for life in log.lives for step in life.digests]
    return ChurnResult(
        replicas=replicas,
        kills=len(killed),
        in_exchange=sum(_waits(life, every) for life in killed),
        rounds=len(contributors),
        made=made,
        useful=useful,
        lost=made - useful,
        most_lost=max((_steps_lost(life, contributors, every) for life in log.lives), default=0),
        possible=len(contributors) * replicas * every,
        boundaries=len(set(digests)),
        digests=len(digests),
        join_median=median(joins) if joins else 0.0,
        join_most=max(joins, default=0.0),
        round_median=median(lengths),
        round_most=max(lengths),
        seconds=log.seconds,
        accuracy=max(life.accuracy or 0.0 for life in log.lives),
        problems=tuple(problems),
    )


def _disagreements(log: Log) -> list[str]:
    problems = [
        f"round {number} has different contributors on different replicas: {sorted(found)}"
        for number, found in log.contributors.items() if len(found) > 1
    ]  # fmt: skip
    digests: dict[int, set[int]] = defaultdict(set)
    for life in log.lives:
        for step, value in life.digests.items():
            digests[step].add(value)
    return problems + [f"replicas differ after step {step}" for step, found in digests.items() if len(found) > 1]


def _useful(log: Log, contributors: dict[int, tuple[int, ...]], every: int) -> int:
    """Steps of contributors, of which a killed process may not have reported its last one."""
    steps = ((life.rank, (step - 1) // every) for life in log.lives for step in life.steps)
    return sum(rank in contributors.get(number, ()) for rank, number in steps)


def _steps_lost(life: Life, contributors: dict[int, tuple[int, ...]], every: int) -> int:
    return sum(life.rank not in contributors.get((step - 1) // every, ()) for step in life.steps)


def _waits(life: Life, every: int) -> bool:
    """Whether the process had made all steps of a round but one, which reports when its exchange has ended."""
    return bool(life.steps) and life.steps[-1] % every == every - 1
