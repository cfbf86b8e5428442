"""Weights are compared by digests: what differs is named on every rank, and near ranks follow each other in a chain."""

from __future__ import annotations

from torch.distributed import HashStore

from gradwire.errors import ConfigError
from gradwire.transport.bootstrap.store_exchange import StoreExchange
from gradwire.transport.bootstrap.weight_check import (
    WeightDifference,
    WeightFacts,
    WeightManifest,
    compare_weights,
    judge,
    layout_difference,
)
from tests.transport.test_rendezvous import together

LINES = ("parameter a (float32 2x2)", "parameter b (float32 2)")


def compared(manifests: list[WeightManifest]) -> list[object]:
    store, world, found = HashStore(), len(manifests), {}

    def job(rank: int) -> None:
        exchange = StoreExchange.open(store, "weights", rank, world, 20)
        found[rank] = compare_weights(exchange, manifests[rank], ("", f"host{rank}"), True)

    errors = together(world, job)
    return [found.get(rank) or errors[rank] for rank in range(world)]


def test_equal_ranks_have_nothing_to_send() -> None:
    manifest = WeightManifest(LINES, ("1", "2"))
    assert compared([manifest] * 3) == [WeightDifference((), (), True, manifest.content)] * 3


def test_ranks_and_tensors_that_differ_are_known_on_every_rank() -> None:
    first = WeightManifest(LINES, ("1", "2"))
    results = compared([first, WeightManifest(LINES, ("1", "3")), first])
    assert results == [WeightDifference((1,), (1,), True, first.content)] * 3


def test_tensors_that_differ_anywhere_are_sent() -> None:
    first = WeightManifest(LINES, ("1", "2"))
    results = compared([first, WeightManifest(LINES, ("1", "3")), WeightManifest(LINES, ("4", "2"))])
    assert results == [WeightDifference((1, 2), (0, 1), True, first.content)] * 3


def test_different_models_are_the_same_error_on_every_rank() -> None:
    first = WeightManifest(LINES, ("1", "2"))
    errors = compared([first, first, WeightManifest((LINES[0], "buffer b (int64 2)"), ("1", "2"))])
    assert all(isinstance(error, ConfigError) for error in errors)
    assert len({str(error) for error in errors}) == 1
    assert "rank 0 has parameter b (float32 2), rank 2 has buffer b (int64 2)" in str(errors[0])


def test_a_missing_tensor_is_named() -> None:
    assert "rank 3 has no more tensors" in layout_difference(LINES, LINES[:1], 3)
    assert "rank 0 has no more tensors" in layout_difference(LINES[:1], LINES, 3)


def test_ranks_of_one_site_and_host_follow_each_other_in_the_chain() -> None:
    places = [("", "a"), ("", "b"), ("", "a"), ("", "b")]
    facts = [WeightFacts("layout", str(rank), place, True) for rank, place in enumerate(places)]
    assert judge(facts).receivers == [2, 1, 3]
    sites = [("x", "a"), ("y", "b"), ("x", "c"), ("x", "a")]
    facts = [WeightFacts("layout", str(rank), place, True) for rank, place in enumerate(sites)]
    assert judge(facts).receivers == [3, 2, 1]


def test_one_rank_without_direct_sends_makes_all_use_a_broadcast() -> None:
    facts = [WeightFacts("layout", str(rank), ("", ""), rank != 1) for rank in range(3)]
    assert not judge(facts).by_sends
