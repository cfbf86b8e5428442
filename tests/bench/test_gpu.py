"""The table of docs/gpu.md: it is the script's, and says what limits a step."""

from __future__ import annotations

from gpu import ASSUMED, PAGE, page, stages, table


def test_the_page_has_the_table_that_the_script_writes() -> None:
    text = PAGE.read_text()
    assert page(text, table()) == text, "run: python benchmarks/gpu.py --write"


def test_off_is_the_backends_own_and_other_levels_cross_the_bus() -> None:
    assert set(stages(ASSUMED[0], "off", 10)) == {"network"}
    assert set(stages(ASSUMED[0], "int8", 10)) == {"network", "bus", "host copies", "kernels"}


def test_on_slow_networks_the_network_is_the_slowest_stage_and_on_fast_ones_the_host() -> None:
    slow, fast = (stages(ASSUMED[0], "int8", gbit) for gbit in (1, 25))
    assert max(slow, key=lambda name: slow[name]) == "network"
    assert max(fast, key=lambda name: fast[name]) == "kernels"


def test_stages_shrink_as_their_rates_grow() -> None:
    first, second = (stages(host, "int4", 10) for host in ASSUMED)
    assert second["bus"] == first["bus"] / 2
    assert stages(ASSUMED[0], "int4", 10)["network"] < stages(ASSUMED[0], "int8", 10)["network"]
