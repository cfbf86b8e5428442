"""Buffer pool: memory is reused, and what is kept stays bounded where sizes vary."""

from __future__ import annotations

import random

import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire.exchange.buffer_pool import BufferLease, BufferPool

CPU = torch.device("cpu")


@given(st.integers(1, 10**8))
def test_a_buffer_is_at_most_an_eighth_larger_than_asked_for(nbytes: int) -> None:
    lent = BufferLease(BufferPool(), torch.device("meta")).take(nbytes, varies=True)
    assert lent.numel() == nbytes
    assert nbytes <= lent.untyped_storage().nbytes() <= nbytes * 1.125 + 1


def test_a_lease_has_the_requested_size_and_returns_the_whole_buffer() -> None:
    pool = BufferPool()
    lease = BufferLease(pool, CPU)
    first = lease.take(1001, varies=True)
    assert first.numel() == 1001
    place = first.data_ptr()
    lease.give(first)
    assert lease.take(1003, varies=True).data_ptr() == place
    lease.end()


def test_sizes_that_differ_at_every_step_share_a_few_buffers() -> None:
    pool, rng, addresses = BufferPool(), random.Random(1), set()
    for _ in range(500):
        lease = BufferLease(pool, CPU)
        addresses.add(lease.take(rng.randint(90_000, 100_000), varies=True).data_ptr())
        lease.end()
    assert len(addresses) <= 3
