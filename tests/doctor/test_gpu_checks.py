"""GPU checks: they pass on a device that keeps its promises, and name what one that does not gets wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from gradwire.cli.main import cli
from gradwire.device.base import Device, DeviceStream
from gradwire.doctor import gpu_checks
from gradwire.doctor.gpu_checks import copy_rates, run_checks
from tests.device.simulated import SimulatedDevice


class CheckedSimulation:
    slot = 1024

    def __init__(self, seed: int | None = None, ignore: str = "") -> None:
        self._simulated = SimulatedDevice(seed, ignore)
        self.device: Device = self._simulated

    def memory(self, numel: int, dtype: torch.dtype) -> Tensor:
        return self._simulated.memory(numel, dtype=dtype)

    def find(self, tensor: Tensor) -> Device | None:
        return self._simulated.find(tensor)

    def occupy(self, stream: DeviceStream) -> None:
        """Its streams are as late as they can be already; one more piece of work that nobody waits for."""
        stream.launch(lambda: None)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_checks, "NUMEL", 1003)


@pytest.mark.parametrize("seed", [None, 0])
def test_a_device_that_keeps_its_promises_passes(seed: int | None) -> None:
    results = run_checks(CheckedSimulation(seed))
    assert [one.name for one in results] == ["copies", "order", "futures", "callbacks", "exchange"]
    assert all(one.passed for one in results), results


@pytest.mark.parametrize(
    ("broken", "found_by"),
    [
        ("wait:download", {"order", "exchange"}),
        ("host:download", {"copies", "order", "exchange"}),
        ("host:upload", {"copies", "exchange"}),
        ("wait:training", {"futures", "exchange"}),
        ("wait:callback", {"callbacks"}),
        ("future", {"futures", "callbacks", "exchange"}),
    ],
)
def test_a_device_that_lacks_an_order_fails_the_checks_of_that_order(
    monkeypatch: pytest.MonkeyPatch, broken: str, found_by: set[str]
) -> None:
    monkeypatch.setattr(gpu_checks, "LEVELS", ("int8",))
    failed = {one.name: one.text for one in run_checks(CheckedSimulation(ignore=broken)) if not one.passed}
    assert found_by <= set(failed)
    assert all("instead of" in text for name, text in failed.items() if name != "callbacks"), failed


def test_an_error_of_the_driver_is_the_result_of_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(nbytes: int) -> Tensor:
        raise RuntimeError("cannot pin")

    checked = CheckedSimulation()
    monkeypatch.setattr(checked.device, "pinned", refused)
    first = run_checks(checked)[0]
    assert (first.passed, first.text) == (False, "RuntimeError: cannot pin")


def test_copy_rates_are_those_of_both_directions() -> None:
    assert all(rate > 0 for rate in copy_rates(CheckedSimulation(), nbytes=8192))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU: run gradwire doctor --gpu")
def test_without_a_gpu_the_command_says_so() -> None:
    result = CliRunner().invoke(cli, ["doctor", "--gpu"])
    assert result.exit_code != 0
    assert "sees no CUDA device" in result.output + str(result.exception)


def test_kernels_of_a_device_are_compared_with_those_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = pytest.importorskip("tests.compress.interpreted").launch
    monkeypatch.setattr(gpu_checks, "KERNEL_LEVELS", ("int8", "topk:0.03+int8"))
    monkeypatch.setattr(gpu_checks, "RESIDUAL_LEVELS", ("int8",))
    assert "2 levels: kernels" in gpu_checks.check_kernels(CheckedSimulation()), "values that are summed as they are"
    monkeypatch.setattr(gpu_checks, "NUMEL", 5003)
    assert "2 levels: kernels" in gpu_checks.check_kernels(CheckedSimulation())
    encode = launch.encode_quantised

    def with_other(place: int) -> None:
        """Another seed as the argument at this place."""

        def wrong(*given: Any) -> None:
            encode(*given[:place], 5, *given[place + 1 :])

        monkeypatch.setattr(launch, "encode_quantised", wrong)

    with_other(place=5)
    with pytest.raises(gpu_checks.CheckFailedError, match=r"int8 of torch\.float32"):
        gpu_checks.check_kernels(CheckedSimulation())
    with_other(place=7)
    with pytest.raises(gpu_checks.CheckFailedError, match=r"int8 of torch\.float32"):
        gpu_checks.check_kernels(CheckedSimulation())
