"""FSDP hook on a device: no wait per unit, and training sees every unit's mean at the end of backward.

The hook and the session are the real ones; the device is simulated, and the test plays FSDP2, which calls the hook
on a stream of its own.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from gradwire.compress.base import Weights
from gradwire.integrations.fsdp_hook import FsdpHook
from gradwire.integrations.fsdp_unit import FsdpUnit
from gradwire.level import Level
from gradwire.types import Decision, ParameterSlice
from tests.runtime.sessions import ConstantWeights, Sessions
from tests.runtime.test_host_path import SHAPES, DeviceSessions, drawn, same, trained


class Unit(FsdpUnit):
    """Of FSDP2 only what says whether anything reads the gradient in backward."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._group = SimpleNamespace(
            all_reduce_grads=True,
            gradient_divide_factor=None,
            _orig_dtype=torch.float32,
            force_sum_reduction_for_comms=False,
            fsdp_params=[],
        )

    def layout(self, numel: int) -> tuple[tuple[ParameterSlice, ...], Weights]:
        return (ParameterSlice(self._name, 0, (numel,), numel),), ConstantWeights(numel)


class FsdpSessions(DeviceSessions):
    """The gradients of each unit are reduced on a stream of FSDP2, where its hook is called."""

    def __init__(self, ignore: str = "") -> None:
        super().__init__(0, ignore)
        self.hooks = [FsdpHook(session, 2) for session in self.sessions]
        self.units = [[Unit(f"{rank}.{index}") for index in range(len(SHAPES))] for rank in range(2)]

    def _backward(self, rank: int, level: Level, gradients: list[Tensor]) -> None:
        device, hook = self.devices[rank], self.hooks[rank]
        self.governors[rank].decision = Decision(level, "the test's level")
        reducing = device.new_stream("fsdp")
        memory = [device.memory(gradient.numel()) for gradient in gradients]
        for unit, buffer, gradient in zip(self.units[rank], memory, gradients, strict=True):
            reducing.wait_event(device.default.record_event())
            reducing.launch(partial(buffer.copy_, gradient.clone()))
            with device.current(reducing):
                hook(unit, buffer)
        assert len(hook._in_flight) == len(memory), "a unit was waited for"
        hook.end_of_backward()
        for buffer, gradient in zip(memory, gradients, strict=True):
            device.default.launch(partial(gradient.copy_, buffer))
        device.finish()


@pytest.mark.parametrize("level", ["int8", "topk:0.05+int8", "off"])
def test_units_of_a_device_are_synchronised_without_a_wait_for_each(level: str) -> None:
    expected = trained(Sessions(2, SHAPES, own_wire=True), [level])
    world = FsdpSessions()
    assert same(trained(world, [level]), expected)
    waiting = set().union(*(device.waiting_threads for device in world.devices))
    assert waiting == {"gradwire-download", "gradwire-upload"}, "the training thread waits for no event"


@pytest.mark.parametrize("left_out", ["wait:download", "future"])
def test_every_wait_is_needed(left_out: str) -> None:
    expected = trained(Sessions(2, SHAPES, own_wire=True), ["int8"])
    assert not same(trained(FsdpSessions(left_out), ["int8"]), expected)


def test_a_unit_whose_gradient_is_read_in_backward_is_waited_for() -> None:
    unit = Unit("0")
    assert unit.views_only(torch.zeros(4))
    assert unit.views_only(torch.zeros(4, device="meta")) is False, "of another device"
    unit._group.fsdp_params = [SimpleNamespace(offload_to_cpu=True, sharded_param=SimpleNamespace(grad=None))]
    assert not unit.views_only(torch.zeros(4))


def test_gradients_of_steps_differ() -> None:
    """Otherwise a mean of the step before would pass for that of the present one."""
    assert not same(drawn(0)[0], drawn(1)[0])
