"""Pulses and the step timer: what one rank measured, in one small record; corrupted bytes are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.errors import GradwireError, IntegrityError
from gradwire.sense.pulse import SIZE, Pulse, Stamps, pack, unpack
from gradwire.sense.step_timer import StepTimer, union
from gradwire.types import Acks, LinkFacts, Readiness, RoundNorms, StepFacts


def example() -> Pulse:
    facts = StepFacts(1.5, 0.2, 0.4, 123_456, 2, 0.01, 0.3, (), 4.5, 2.25, divergence=RoundNorms(20, 3.5, 1.5))
    acks, link = Acks(0.01, 5e6, 0.002, 0.03, 4e6, 0.25), LinkFacts(5, 0.125, 1e6, 2e6, 3e6)
    return Pulse(7, facts, Stamps(1.0, 2.0, 3.0, 4.0), acks, Readiness("trees", failed=True), link, -0.25)


def test_a_pulse_is_packed_and_unpacked() -> None:
    assert unpack(pack(example())) == example()
    empty = Pulse(1, None, Stamps())
    assert unpack(pack(empty)) == empty


@given(place=st.integers(0, SIZE - 1), flip=st.integers(1, 255))
def test_a_changed_byte_is_refused(place: int, flip: int) -> None:
    data = bytearray(pack(example()))
    data[place] ^= flip
    with pytest.raises(IntegrityError):
        unpack(bytes(data))


@given(st.binary(max_size=SIZE + 50))
def test_random_bytes_are_refused(junk: bytes) -> None:
    with pytest.raises(GradwireError):
        unpack(junk)


def test_the_union_of_overlapping_intervals() -> None:
    assert union([(5.0, 6.0), (0.0, 2.0), (1.0, 3.0), (1.5, 1.6)]) == 4.0
    assert union([]) == 0.0


def test_a_lap_summarises_the_step() -> None:
    watch = StepTimer()
    assert watch.lap(100.0, 2) is None
    watch.bucket_ready(100.0, 400)
    watch.bucket_ready(100.5, 600)
    watch.operation(100.1, 100.4, 50)
    watch.operation(100.3, 100.9, 70)
    watch.worked(0.05, 101.0)
    watch.energies(8.0, 2.0)
    facts = watch.lap(102.0, 2, loss=1.5)
    assert facts is not None
    assert facts.seconds == 2.0
    assert facts.exposed == pytest.approx(0.5)
    assert facts.busy == pytest.approx(0.8)
    assert facts.wire_bytes == 120
    assert facts.buckets == ((0.0, 400), (0.5, 600))
    assert facts.residual == 4.0
    assert facts.compute == pytest.approx(1.5)
    assert watch.lap(103.0, 2) is None, "a step without buckets has no facts"


def test_what_training_did_not_wait_for_is_slack_and_not_exposed() -> None:
    timer = StepTimer()
    timer.lap(0.0, 0)
    timer.bucket_ready(1.0, 8)
    timer.operation(1.0, 4.0, 8)
    timer.needed(3.0)
    facts = timer.lap(6.0, 1)
    assert facts is not None
    assert (facts.exposed, facts.slack, facts.carrying) == (1.0, 2.0, 1.0)
    timer.bucket_ready(7.0, 8)
    timer.operation(7.0, 8.0, 8)
    facts = timer.lap(9.0, 1)
    assert facts is not None
    assert (facts.exposed, facts.slack) == (1.0, 0.0), "of the next step, without a delay"


def test_a_round_has_the_steps_that_were_computed_and_the_divergence_of_its_exchange() -> None:
    timer = StepTimer()
    timer.lap(0.0, 0)
    timer.bucket_ready(1.0, 8)
    timer.diverged(RoundNorms(5, 2.0, 1.0))
    timer.round_ended(7)
    facts = timer.lap(9.0, 2)
    assert facts is not None
    assert (facts.steps, facts.divergence) == (7, RoundNorms(5, 2.0, 1.0))
    timer.bucket_ready(10.0, 8)
    after = timer.lap(11.0, 2)
    assert after is not None
    assert (after.steps, after.divergence) == (1, None)
