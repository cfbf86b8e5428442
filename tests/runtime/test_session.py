"""Session: it closes as a whole, and an error after a bucket's last chunk reaches the training loop."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.futures import Future

from gradwire.errors import ConfigError, LinkError
from gradwire.events import Decided, Synchronised
from gradwire.runtime.event_reporter import EventReporter
from gradwire.runtime.pipeline import Pipeline
from gradwire.runtime.plain_path import AllReduceMean
from gradwire.transport.lanes.loopback import Loopback
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


def test_a_governor_begins_a_step_at_its_first_bucket_and_only_there(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int]] = []
    monkeypatch.setattr(ScriptedGovernor, "begin_step", lambda self, bucket: calls.append(("begin", bucket.index)))
    monkeypatch.setattr(ScriptedGovernor, "add_bucket", lambda self, bucket: calls.append(("add", bucket.index)))
    world = Sessions(1, [*SHAPES, [("v", (30,))]])
    for _ in range(2):
        world.step("off", [[torch.randn(6000), torch.randn(30)]])
    world.close()
    assert calls == [("begin", 0), ("add", 1)] * 2


def test_a_decision_is_recorded_when_the_level_of_a_bucket_changes() -> None:
    world = Sessions(2, SHAPES)
    for level in ("int8", "int8", "off", "int8"):
        world.step(level, [[torch.randn(6000)] for _ in range(2)])
    world.close()
    decided = [event.level for event in world.events if isinstance(event, Decided)]
    assert sorted(decided) == sorted(["int8", "off", "int8"] * 2)


def test_a_detached_session_sends_the_residuals_once_and_then_what_plain_ddp_sends() -> None:
    world = Sessions(2, SHAPES)
    gradients = [[torch.randn(6000)] for _ in range(2)]
    restored = world.step("topk:0.05", gradients)[0][0]
    for session in world.sessions:
        session.detach()
    left = sum(own[0] for own in gradients) / 2 - restored
    torch.testing.assert_close(world.step("topk:0.05", [[torch.zeros(6000)]] * 2)[0][0], left)
    assert torch.equal(world.step("topk:0.05", gradients)[0][0], sum(own[0] * 0.5 for own in gradients))
    world.close()


class GroupOfUnknownDevices(Sessions):
    """The process group reduces tensors of every device."""

    def all_reduce(self, world: Loopback, rank: int) -> AllReduceMean:
        def all_reduce(buffer: Tensor) -> Future[list[Tensor]]:
            done: Future[list[Tensor]] = Future()
            done.set_result([buffer])
            return done

        return all_reduce


def test_a_gradient_of_an_unknown_device_is_refused_only_where_it_is_needed_in_host_memory() -> None:
    world, unknown = GroupOfUnknownDevices(1, SHAPES), [[torch.zeros(6000, device="meta")]]
    (session,) = world.sessions
    assert world.step("off", unknown)[0][0].device.type == "meta"
    with pytest.raises(ConfigError, match="gradients are on meta"):
        world.step("int8", unknown)
    session._parts = replace(session._parts, adaptive=True)
    with pytest.raises(ConfigError, match="gradients are on meta"):
        world.step("off", unknown)
    session.detach()
    assert world.step("int8", unknown)[0][0].device.type == "meta"
    world.close()
