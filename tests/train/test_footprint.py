"""Cost of attaching: no more memory than a copy of the gradient and the residuals, no processor time when idle."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.train import footprint
from tests.train.ranks import Ranks

WORLD = 2


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """New processes: tensors of earlier tests in shared processes would be counted."""
    pool = Ranks()
    yield pool
    pool.close()


@pytest.mark.parametrize("level", ["off", "fp16", "int8", "topk:0.01+int8", "lowrank:4", "auto"])
def test_attaching_holds_at_most_one_gradient_and_the_residuals(ranks: Ranks, level: str) -> None:
    for gradient, more in ranks.run(WORLD, footprint.memory, level):
        # A rank's own residual is as large as the gradient, that of the shard it owns a share of it.
        residuals = gradient + gradient // WORLD
        headers = gradient // 1000
        assert more <= gradient + residuals + headers, f"{more / gradient:.2f} gradients"
        if level == "off":
            assert more < gradient // 100


@pytest.mark.parametrize("level", ["int8", "auto"])
def test_an_idle_job_uses_no_processor(ranks: Ranks, level: str) -> None:
    used = min(max(ranks.run(WORLD, footprint.idle, level)) for _ in range(2))
    # A thread that spins would use all of the second; gloo's own event loop wakes up now and then.
    assert used < 0.05 * footprint.IDLE_SECONDS
