"""Session: it closes as a whole, and an error after a bucket's last chunk reaches the training loop."""

from __future__ import annotations

import pytest
import torch

from gradwire.errors import LinkError
from gradwire.events import Synchronised
from gradwire.runtime.event_reporter import EventReporter
from gradwire.runtime.pipeline import Pipeline
from tests.runtime.sessions import ScriptedGovernor, Sessions

SHAPES = [[("w", (60, 100))]]


def test_a_session_closes_everything_when_a_part_raises_and_can_be_closed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[str] = []
    close = Pipeline.close

    def stuck_at_first(self: Pipeline) -> None:
        closed.append("pipeline")
        if closed.count("pipeline") == 1:
            raise LinkError("stuck")
        close(self)

    monkeypatch.setattr(Pipeline, "close", stuck_at_first)
    monkeypatch.setattr(ScriptedGovernor, "close", lambda self: closed.append("governor"))
    (session,) = Sessions(1, SHAPES, release=lambda: closed.append("carrier")).sessions
    with pytest.raises(LinkError, match="stuck"):
        session.close()
    assert closed == ["pipeline", "governor", "carrier"]
    session.close()
    session.close()
    assert closed == ["pipeline", "governor", "carrier", "pipeline"]


def test_an_error_after_the_last_chunk_fails_the_bucket_and_not_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Sessions(2, SHAPES)
    gradients = [[torch.randn(6000)] for _ in range(2)]

    def broken(self: EventReporter, *facts: object) -> Synchronised:
        raise ValueError("the event cannot be written")

    with monkeypatch.context() as patched:
        patched.setattr(EventReporter, "synchronised", broken)
        with pytest.raises(ValueError, match="cannot be written"):
            world.step("int8", gradients)
    assert world.step("int8", gradients)[0][0].isfinite().all()
    world.close()
