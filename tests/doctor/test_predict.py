"""Predictions follow the stated model, and the recommendation is the mildest level that is about as fast as any."""

from __future__ import annotations

import pytest

from gradwire.doctor.encoding_cost import encoding_costs
from gradwire.doctor.predict import HIDDEN, LADDER, NetworkPath, Workload, parse_model, predict, recommend, wire_bytes
from gradwire.doctor.types import Finding
from gradwire.errors import ConfigError
from gradwire.level import Level
from gradwire.units import Rate, Seconds

SLOW = NetworkPath(Rate.from_mbit(94), Seconds(0.0005))
COSTS = {"off": 0.0, "fp16": 1e-9, "int8": 2e-9, "int4": 2e-9, "topk:0.1+int8": 3e-9, "topk:0.01+int8": 2e-9}
FAST = NetworkPath(Rate.from_mbit(95_000), Seconds(0.00005))


def test_a_model_is_a_name_or_millions_of_parameters() -> None:
    assert parse_model("resnet18").parameters == 11_174_000
    assert parse_model("350M", 40).parameters == 350_000_000
    assert parse_model("0.5m", 40).compute == Seconds(0.04)
    with pytest.raises(ConfigError, match="model: unknown 'bert'; use one of resnet18"):
        parse_model("bert")
    with pytest.raises(ConfigError, match="0M"):
        parse_model("0M")


def test_uncompressed_bytes_are_those_of_a_ring() -> None:
    assert wire_bytes(Level(), 1000, 4) == 6000
    assert wire_bytes(Level.parse("fp16"), 1_000_000, 4) == pytest.approx(3e6, rel=0.01)


def test_communication_that_fits_behind_backward_costs_nothing() -> None:
    work = Workload("m", 1_000_000, Seconds(1.0))
    plain = predict(work, SLOW, 4, {"off": 0.0})[0]
    assert plain.wire_bytes / SLOW.rate < HIDDEN
    assert plain.exposed == 0
    assert plain.seconds == 1.0


def test_what_does_not_fit_is_exposed() -> None:
    work = Workload("m", 100_000_000, Seconds(0.1))
    plain = predict(work, SLOW, 4, {"off": 0.0})[0]
    transfer = plain.wire_bytes / float(SLOW.rate)
    assert plain.exposed == pytest.approx(transfer + 3 * SLOW.rtt - HIDDEN * 0.1)


def test_what_encoding_costs_counts_as_waiting() -> None:
    work = Workload("m", 10_000_000, Seconds(0.0))
    cheap, dear = (predict(work, SLOW, 4, {"int8": cost})[0] for cost in (0.0, 1e-8))
    assert dear.seconds - cheap.seconds == pytest.approx(0.1)


def test_every_level_of_the_ladder_has_a_cost_and_only_plain_is_free() -> None:
    costs = encoding_costs(LADDER)
    assert list(costs) == list(LADDER)
    assert costs["off"] == 0
    assert all(costs[level] > 0 for level in LADDER[1:])


def test_plain_ddp_is_recommended_on_a_fast_network() -> None:
    work = parse_model("resnet18")
    assert recommend(predict(work, FAST, 4, COSTS), [], work, FAST).startswith("Plain DDP is good enough")


def test_a_level_is_recommended_on_a_slow_network() -> None:
    work = parse_model("resnet18")
    predictions = predict(work, SLOW, 4, COSTS)
    sentence = recommend(predictions, [], work, SLOW)
    assert sentence.startswith("Use gradwire.attach(model): with 94 Mbit/s")
    assert '"auto" would use int4.' in sentence, "the quickest of those that cost next to no steps"
    int4 = next(one for one in predictions if one.level == "int4")
    assert f"takes about {Seconds(int4.seconds)} instead of {Seconds(predictions[0].seconds)}" in sentence
    assert "with about 2% more steps to the same loss" in sentence


def test_a_lossier_level_that_may_be_quicker_comes_with_its_price() -> None:
    work = Workload("small", 10_000_000, Seconds(0.01))
    path = NetworkPath(Rate.from_mbit(5), Seconds(0.001))
    sentence = recommend(predict(work, path, 4, COSTS), [], work, path)
    assert '"auto" would use int4.' in sentence
    assert "topk:0.01+int8 would take" in sentence
    assert "up to 3.3 times as many steps" in sentence
    assert "extra_steps = 2.3" in sentence


def test_on_a_far_network_another_transport_is_named() -> None:
    work = Workload("small", 800_000, Seconds(0.01))
    far = NetworkPath(Rate.from_mbit(300), Seconds(0.08))
    predictions = predict(work, far, 4, COSTS)
    int8 = predictions[2]
    assert int8.seconds - int8.own_wire == pytest.approx(0.08)
    assert "gradwire's own transport" in recommend(predictions, [], work, far)
    assert "own transport" not in recommend(predict(work, SLOW, 4, COSTS), [], work, SLOW)


def test_the_mildest_of_equals_is_chosen() -> None:
    work = Workload("small", 200_000, Seconds(0.05))
    predictions = predict(work, NetworkPath(Rate.from_mbit(300), Seconds(0.0002)), 2, COSTS)
    # Everything fits behind backward here, so nothing is gained by compressing.
    assert recommend(predictions, [], work, SLOW).startswith("Plain DDP")


def test_a_mistake_comes_before_any_level() -> None:
    work = parse_model("resnet18")
    wrong = Finding("error", "wrong-interface", "rank 1 ...", "export GLOO_SOCKET_IFNAME=eth0 on node1")
    assert recommend(predict(work, SLOW, 4, COSTS), [wrong], work, SLOW) == f"Fix the set-up first: {wrong.fix}."


def test_smaller_buckets_are_recommended_if_the_default_reduces_the_overlap() -> None:
    work = Workload("resnet18", 11_174_000, Seconds(0.075))
    path = NetworkPath(Rate.from_mbit(10_000), Seconds(0.0001))  # dense just hides behind backward, in small pieces
    assert "bucket_cap_mb=" in recommend(predict(work, path, 4, COSTS), [], work, path)
    vast = NetworkPath(Rate.from_mbit(100_000), Seconds(0.0001))
    assert "bucket_cap_mb=" not in recommend(predict(work, vast, 4, COSTS), [], work, vast)
