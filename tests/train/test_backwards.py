"""Kinds of backward: reentrant checkpointing, static graphs, gradient accumulation, backwards that fail."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import gradwire
from tests.train import jobs
from tests.train.instruments import recorded_settles
from tests.train.ranks import Ranks

BLOCKS = 4


class Checkpointed(nn.Module):
    """Blocks that are recomputed in backward; reentrant: by a backward of their own inside the outer one."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Linear(40, 40) for _ in range(BLOCKS))
        self._reentrant = reentrant

    def forward(self, hidden: Tensor) -> Tensor:
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=self._reentrant).relu()
        return hidden


def _settles(
    rank: int, world: int, level: str | None, reentrant: bool = True, accumulate: bool = True, **ddp: Any
) -> tuple[list[int], Tensor]:
    """Buckets in flight whenever the session settles, and the gradients of three steps."""
    model = DistributedDataParallel(Checkpointed(reentrant), bucket_cap_mb=0.006, **ddp)
    handle = gradwire.attach(model, level) if level else None
    gradients = []
    with recorded_settles() as in_flight:
        for step in range(3):
            inputs = jobs.batch(rank, step)[0].requires_grad_()
            model.zero_grad()
            if accumulate:
                with model.no_sync():
                    model(inputs).pow(2).sum().backward()
            model(inputs).pow(2).sum().backward()
            gradients.append(torch.cat([p.grad.flatten().clone() for p in model.parameters()]))
    assert handle is None or handle.step == 3
    if handle:
        handle.close()
    return in_flight, torch.stack(gradients)


def _static(rank: int, world: int, level: str | None) -> tuple[list[int], Tensor]:
    return _settles(rank, world, level, accumulate=False, static_graph=True)


# DDP makes its buckets after the first backward; until then there is one.
ONCE_A_STEP = [1, BLOCKS, BLOCKS]


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_backward_settles_once_with_every_bucket_in_flight(ranks: Ranks, reentrant: bool) -> None:
    plain = ranks.run(2, _settles, None, reentrant)[0][1]
    for in_flight, gradients in ranks.run(2, _settles, "off", reentrant):
        assert in_flight == ONCE_A_STEP
        assert torch.equal(gradients, plain)
    for in_flight, gradients in ranks.run(2, _settles, "int8", reentrant):
        assert in_flight == ONCE_A_STEP
        torch.testing.assert_close(gradients, plain, atol=0.05 * float(plain.abs().max()), rtol=0.1)


def test_a_static_graph_with_reentrant_checkpointing_settles_once_a_step(ranks: Ranks) -> None:
    plain = ranks.run(2, _static, None)[0][1]
    for in_flight, gradients in ranks.run(2, _static, "off"):
        assert in_flight == [1, 1, BLOCKS], "DDP makes a static graph's buckets after the second backward"
        assert torch.equal(gradients, plain)


def _fails_at_first(rank: int, world: int) -> str:
    """DDP reduces a static graph's first backward at its end, and waits for that at once."""
    from gradwire.compress import dense

    model = DistributedDataParallel(jobs.small_net(), bucket_cap_mb=0.02, static_graph=True)
    handle = gradwire.attach(model, {"level": "int8", "transport": {"timeout": 5}})
    original = dense.DenseCodec.encode

    def broken(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise MemoryError("the encoder failed")

    dense.DenseCodec.encode = broken  # type: ignore[method-assign]
    try:
        model(jobs.batch(rank, 0)[0]).sum().backward()
    except Exception as error:
        return type(error).__name__
    finally:
        dense.DenseCodec.encode = original  # type: ignore[method-assign]
        handle.close()
    return "no error"


def test_an_error_in_the_first_backward_of_a_static_graph_keeps_its_type(ranks: Ranks) -> None:
    assert ranks.run(2, _fails_at_first) == ["MemoryError"] * 2
