"""A frame is only used in the step, plan, piece and level that it was made for."""

from __future__ import annotations

import pytest
import torch

from gradwire.errors import IntegrityError
from gradwire.plan.membership.messages import Tag
from gradwire.tree.frame_header import SIZE, FrameHeader

OWN = Tag(epoch=0, version=1, step=1, vote=5)


def received(tag: Tag, numel: int = 100, form: int = 9) -> FrameHeader:
    frame = torch.zeros(SIZE, dtype=torch.uint8)
    FrameHeader(tag, 3, numel, form).write(frame)
    return FrameHeader.read(frame)


def test_a_header_is_read_as_it_was_written() -> None:
    assert received(OWN) == FrameHeader(OWN, 3, 100, 9)


def test_members_may_vote_differently_in_one_step() -> None:
    received(Tag(0, 1, 1, vote=7)).check(OWN, 100, 9)


@pytest.mark.parametrize("other", [Tag(0, 7, 1), Tag(0, 1, 0), Tag(0, 1, 2), Tag(9, 1, 1)])
def test_two_plans_steps_or_epochs_in_one_step_stop_loudly(other: Tag) -> None:
    with pytest.raises(IntegrityError, match="expected"):
        received(other).check(OWN, 100, 9)


def test_another_piece_or_level_stops_loudly() -> None:
    for header in (received(OWN, numel=101), received(OWN, form=8)):
        with pytest.raises(IntegrityError, match="expected"):
            header.check(OWN, 100, 9)


def test_a_frame_of_something_else_is_refused() -> None:
    with pytest.raises(IntegrityError, match="same gradwire version"):
        FrameHeader.read(torch.zeros(SIZE, dtype=torch.uint8))
