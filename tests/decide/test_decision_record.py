"""Decision records: what rank 0 decided reaches the other ranks unchanged; corrupted bytes are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.decide.decision_record import SIZE, pack_decision, unpack_decision
from gradwire.errors import GradwireError, IntegrityError
from gradwire.level import Level
from gradwire.types import Decision


def example(reason: str = "because") -> Decision:
    level = Level.parse("topk:0.01+int8")
    return Decision(level, reason, 3, sync_every=50, transport="ltp", prepare="trees", delay=1)


def test_a_decision_is_packed_and_unpacked() -> None:
    assert unpack_decision(pack_decision(example())) == example()
    empty = Decision(Level(), "")
    assert unpack_decision(pack_decision(empty)) == empty


@given(st.text(max_size=400))
def test_any_reason_fits_or_is_truncated(reason: str) -> None:
    data = pack_decision(example(reason))
    assert len(data) == SIZE
    assert reason.startswith(unpack_decision(data).reason)


@given(place=st.integers(0, SIZE - 1), flip=st.integers(1, 255))
def test_a_changed_byte_is_refused(place: int, flip: int) -> None:
    data = bytearray(pack_decision(example()))
    data[place] ^= flip
    with pytest.raises(IntegrityError):
        unpack_decision(bytes(data))


@given(st.binary(max_size=SIZE + 50))
def test_random_bytes_are_refused(junk: bytes) -> None:
    with pytest.raises(GradwireError):
        unpack_decision(junk)
