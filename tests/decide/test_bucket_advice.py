"""Advice on bucket_cap_mb: given where it helps, withheld where it does not."""

import pytest

from gradwire.decide.bucket_advice import MEGABYTE, advise, cut, exposed

# ResNet-18 under DDP's default: 45 MB in three buckets over 50 ms of backward.
LARGE = ((0.0, 4 * MEGABYTE), (0.025, 20 * MEGABYTE), (0.050, 19 * MEGABYTE))


def test_large_buckets_that_begin_late_get_a_smaller_cap() -> None:
    rate = 43 * MEGABYTE / 0.050  # just overlaps with backward
    advice = advise(LARGE, rate, 0.0001, 0.075)
    assert advice is not None
    assert advice.bucket_cap_mb < 20
    assert advice.gain == pytest.approx((exposed(LARGE, rate, 0.0001) - 0.004) / 0.075, abs=0.1)


def test_no_advice_where_the_network_is_so_slow_that_overlap_hardly_matters() -> None:
    assert advise(LARGE, 1e6, 0.001, 45.0) is None


def test_no_advice_where_buckets_are_small_already() -> None:
    small = tuple((0.005 * index, 2 * MEGABYTE) for index in range(20))
    assert advise(small, 40 * MEGABYTE / 0.09, 0.0001, 0.15) is None


def test_tiny_buckets_on_a_fast_network_get_a_larger_cap() -> None:
    tiny = tuple((0.0001 * index, 40_000) for index in range(200))
    advice = advise(tiny, 1e9, 0.0001, 0.15)
    assert advice is not None
    assert advice.bucket_cap_mb * MEGABYTE > 40_000


@pytest.mark.parametrize("buckets", [(), ((0.0, 10),), ((0.0, 10), (0.0, 10))])
def test_no_advice_from_too_few_buckets(buckets: tuple[tuple[float, int], ...]) -> None:
    assert advise(buckets, 1e6, 0.001, 1.0) is None


def test_cutting_keeps_every_byte_and_the_last_time() -> None:
    pieces = cut(LARGE, 5 * MEGABYTE)
    assert sum(nbytes for _, nbytes in pieces) == 43 * MEGABYTE
    assert pieces[-1][0] == LARGE[-1][0]
    assert [at for at, _ in pieces] == sorted(at for at, _ in pieces)
