"""ReplicaVerifier: different gradients are an error and an event; only every few steps are compared."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from gradwire.clock import MonotonicClock
from gradwire.errors import IntegrityError
from gradwire.events import Event, Failed
from gradwire.runtime.event_reporter import EventReporter
from gradwire.runtime.pipeline import Pipeline
from gradwire.runtime.replica_verifier import ReplicaVerifier
from gradwire.transport.lanes.loopback import Loopback
from tests.runtime.transports import transport_of

EVERY = 3


class EventList(list[Event]):
    def emit(self, event: Event) -> None:
        self.append(event)


def verifiers(world_size: int) -> tuple[list[ReplicaVerifier], list[Pipeline], list[EventList]]:
    lanes, events = Loopback(world_size), [EventList() for _ in range(world_size)]
    pipelines = [Pipeline([lanes.lane(rank)], lambda timing: None) for rank in range(world_size)]
    reporters = [EventReporter(sink, MonotonicClock()) for sink in events]
    transports = [transport_of(pipeline, world_size) for pipeline in pipelines]
    return [ReplicaVerifier(EVERY, *parts) for parts in zip(reporters, transports, strict=True)], pipelines, events


def check_all(found: list[ReplicaVerifier], step: int, values: list[float]) -> list[str]:
    def check(verifier: ReplicaVerifier, value: float) -> str:
        try:
            verifier.check(step, [torch.full((4,), value)])
        except IntegrityError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(len(found)) as pool:
        return list(pool.map(check, found, values))


def test_different_gradients_are_an_integrity_error_and_an_event_on_every_rank() -> None:
    found, pipelines, events = verifiers(2)
    assert check_all(found, EVERY, [1.0, 1.0]) == ["", ""]
    assert check_all(found, EVERY + 1, [1.0, 2.0]) == ["", ""], "this step is not compared"
    assert all("replicas differ after step 6" in text for text in check_all(found, 2 * EVERY, [1.0, 2.0]))
    for own in events:
        (failed,) = own
        assert isinstance(failed, Failed)
        assert failed.error.startswith("IntegrityError")
    for pipeline in pipelines:
        pipeline.close()


def test_with_a_comparison_of_its_own_nothing_is_sent_over_the_lanes() -> None:
    compared: list[tuple[int, int]] = []
    pipeline = Pipeline([], lambda timing: None)
    reporter = EventReporter(EventList(), MonotonicClock())
    verifier = ReplicaVerifier(
        1, reporter, transport_of(pipeline, 2), lambda step, digest: compared.append((step, digest))
    )
    for step, value in ((1, 1.0), (2, 1.0), (3, 2.0)):
        verifier.check(step, [torch.full((4,), value)])
    pipeline.close()
    assert [step for step, _ in compared] == [1, 2, 3]
    first, second, third = (digest for _, digest in compared)
    assert first == second != third


def test_an_error_of_the_comparison_is_recorded_and_raised() -> None:
    def differs(step: int, digest: int) -> None:
        raise IntegrityError(f"replicas differ after step {step}")

    events, pipeline = EventList(), Pipeline([], lambda timing: None)
    verifier = ReplicaVerifier(1, EventReporter(events, MonotonicClock()), transport_of(pipeline, 2), differs)
    with pytest.raises(IntegrityError, match="after step 5"):
        verifier.check(5, [torch.ones(2)])
    pipeline.close()
    assert [type(event) for event in events] == [Failed]
