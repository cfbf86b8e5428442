"""Chunks cover a bucket, and their layout says which of them owners sum; a hash finds replicas that differ."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from gradwire.compress.build import build_codec
from gradwire.compress.values import ALIGN
from gradwire.errors import IntegrityError
from gradwire.exchange.chunk_layout import chunk_layout
from gradwire.exchange.verify import digest_of, verify
from gradwire.level import Level
from gradwire.transport.lanes.base import AllReduce
from gradwire.types import Bucket


def bucket(numel: int) -> Bucket:
    return Bucket(0, 0, numel, 4, (), True)


@pytest.mark.parametrize("world", [2, 3, 8])
@pytest.mark.parametrize("numel", [1, 1000, 999_999, 5_000_000])
@pytest.mark.parametrize("level", ["fp16", "int8", "topk:0.01+int8"])
def test_chunks_cover_the_bucket_once_and_shards_of_full_chunks_are_aligned(level: str, numel: int, world: int) -> None:
    layout = chunk_layout(bucket(numel), build_codec(Level.parse(level)), world, 0.5)
    chunks = layout.chunks(numel)
    assert chunks[0][0] == 0
    assert chunks[-1][1] == numel
    assert all(end == start for (_, end), (start, _) in pairwise(chunks))
    assert layout.length % (ALIGN * world) == 0


def test_chunks_have_about_the_wanted_size_when_encoded() -> None:
    numel, codec = 10_000_000, build_codec(Level.parse("int8"))
    for megabytes in (0.5, 1.0, 4.0):
        layout = chunk_layout(bucket(numel), codec, 4, megabytes)
        assert codec.size_of(layout.length) == pytest.approx(megabytes * 1e6, rel=0.3)


def test_a_level_without_frames_and_an_empty_bucket_have_one_chunk_without_owners() -> None:
    whole = chunk_layout(bucket(1_000_000), None, 4, 0.1)
    assert whole.chunks(1_000_000) == [(0, 1_000_000)]
    assert whole.owned == (False, False)
    empty = chunk_layout(bucket(0), build_codec(Level.parse("int8")), 4, 0.1)
    assert empty.chunks(0) == []


def test_a_short_last_chunk_may_be_summed_in_another_way_than_the_full_ones() -> None:
    codec, world = build_codec(Level.parse("int8")), 64
    numel = 8 * ALIGN * world + 5
    layout = chunk_layout(bucket(numel), codec, world, codec.size_of(numel) / 8e6)
    start, end = layout.chunks(numel)[-1]
    assert end - start == 5
    assert layout.owned == (True, False)


def check(mine: list[Tensor], theirs: list[Tensor], step: int = 3) -> None:
    """Run the check of one of two ranks; the all-reduce takes the maximum of both ranks' numbers."""
    other = next(iter(verify(digest_of(theirs), step)))
    exchange = verify(digest_of(mine), step)
    op = next(iter(exchange))
    assert isinstance(op, AllReduce)
    assert isinstance(other, AllReduce)
    assert op.maximum
    torch.maximum(op.tensor, other.tensor, out=op.tensor)
    assert next(exchange, None) is None


def test_equal_replicas_pass_and_one_differing_bit_is_found() -> None:
    gradients = [torch.arange(1000.0), torch.ones(7)]
    check(gradients, [gradient.clone() for gradient in gradients])
    for index in range(2):
        wrong = [gradient.clone() for gradient in gradients]
        wrong[index].view(torch.int32)[3] ^= 1
        for mine, theirs in ((gradients, wrong), (wrong, gradients)):
            with pytest.raises(IntegrityError, match="replicas differ after step 3"):
                check(mine, theirs)


@pytest.mark.filterwarnings("ignore:Sparse invariant")
def test_the_hash_depends_on_order_and_sees_indices_and_values_of_sparse_gradients() -> None:
    first, second = torch.arange(8.0), torch.arange(8.0) + 1
    assert digest_of([first, second]) != digest_of([second, first])
    sparse = torch.sparse_coo_tensor([[1, 3]], [5.0, 6.0], (8,))
    moved = torch.sparse_coo_tensor([[1, 4]], [5.0, 6.0], (8,))
    changed = torch.sparse_coo_tensor([[1, 3]], [5.0, 7.0], (8,))
    assert len({digest_of([tensor]) for tensor in (sparse, moved, changed)}) == 3
    reordered = torch.sparse_coo_tensor([[3, 1]], [6.0, 5.0], (8,))
    assert digest_of([sparse]) == digest_of([reordered])
    assert digest_of([]) == 0
