"""Period: chooses level and number of local steps together, by the least expected time to accuracy. Pure.

    time to accuracy of an option = (compute + exchange / H) x price of the level x price of H

H = 1 is synchronous training, where the exchange also overlaps with backward. `choose` has no state: options and what
is in force in, the option to use and why out. decide/period_controller.py keeps what was measured.

    1. options within 3 % of the best count as equal; the one with the fewest local steps, then the least lossy, is best
    2. leave what is in force only for a clear gain: 8 % within local steps, 15 % between synchronous and local steps,
       which also costs an uncompressed exchange or the outer optimizer's momentum
    3. where the network does not certainly take 5 ms and a tenth of the compute, training is synchronous: what else a
       step waits for is the machine, which local steps do not make faster
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gradwire.level import Level
from gradwire.units import Seconds

# Numbers of local steps to choose from, in factors of about 2: the optimum is flat. A round is not shorter than what
# the inner optimizer's momentum remembers (ten steps): otherwise inner and outer momentum add up, and 5 steps cost more
# than 20 (docs/results/local-steps.md).
PERIODS: Final = (10, 20, 50, 100)
# Local steps of the first rounds, at most, and after that the share of all steps made so far: only the end of a round
# shows how far replicas move apart (decide/period_price.py), so a wrong first price costs a quarter of the training at
# most. Chosen, checked in virtual time.
FIRST_ROUND: Final = 50
LARGEST_SHARE: Final = 0.25
# Estimates vary by a few per cent on a steady network. These bands prevent flapping; chosen, not measured.
AS_GOOD: Final = 0.03
WORSE: Final = 0.08
WORSE_MODE: Final = 0.15
# Seconds, and share of the compute, that the network must take in a synchronous step. Chosen: ranks of one host wait 1
# to 3 ms for each other.
NEGLIGIBLE: Final = 0.005
NEGLIGIBLE_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True)
class PeriodOption:
    """One level with one number of local steps: seconds of compute a step, seconds that training waits for an exchange,
    and how many times more steps it needs."""

    level: Level
    sync_every: int
    compute: float
    exchange: float
    price: float

    @property
    def seconds(self) -> float:
        return self.compute + self.exchange / self.sync_every

    @property
    def to_accuracy(self) -> float:
        """Seconds per unit of training progress."""
        return self.seconds * self.price

    @property
    def local(self) -> bool:
        return self.sync_every > 1

    def __str__(self) -> str:
        every = f"every {self.sync_every} steps" if self.local else "every step"
        more = f" x {self.price:.2f}" if self.price > 1.005 else ""
        return f"{self.level} {every}: {Seconds(self.seconds)}{more}"


def longest_round(steps: int) -> int:
    """The most local steps that a round may have after so many steps of training."""
    return max(FIRST_ROUND, int(LARGEST_SHARE * steps))


def best_of(options: Sequence[PeriodOption]) -> PeriodOption:
    """The best option; among equals the first, so pass them with fewer local steps and less lossy levels first."""
    least = min(one.to_accuracy for one in options)
    return next(one for one in options if one.to_accuracy <= (1 + AS_GOOD) * least)


def choose(options: Sequence[PeriodOption], here: PeriodOption, network: float) -> tuple[PeriodOption, str]:
    """The option to use, and why. `network` is what an exchange certainly takes, from what is known of latency and
    bandwidth; options with fewer local steps and less lossy levels come first."""
    if network < max(NEGLIGIBLE, NEGLIGIBLE_SHARE * here.compute):  # 3
        options = [one for one in options if not one.local]
    best = best_of(options)  # 1
    band = WORSE if best.local == here.local else WORSE_MODE
    if best == here or here.to_accuracy <= (1 + band) * best.to_accuracy:  # 2
        return here, _explain(here, best if best != here else _runner_up(options, here))
    return best, _explain(best, here)


def _runner_up(options: Sequence[PeriodOption], chosen: PeriodOption) -> PeriodOption | None:
    """The best option of the other kind: synchronous against local."""
    others = [one for one in options if one.local != chosen.local]
    return min(others, key=lambda one: one.to_accuracy) if others else None


def _explain(chosen: PeriodOption, other: PeriodOption | None) -> str:
    return f"a step at {chosen}" + (f"; {other}" if other is not None else "")
