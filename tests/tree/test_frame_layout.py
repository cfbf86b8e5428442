"""Frame layouts: sums, counts and scales have places of their own, and a loss removes whole cells of values."""

from __future__ import annotations

import pytest
import torch

from gradwire.level import Values
from gradwire.transport.wires.base import RELIABLE, Delivery
from gradwire.tree.accumulator import CELL, AccumulatorBody
from gradwire.tree.frame_header import SIZE
from gradwire.tree.frame_layout import FrameLayout, hop_tolerance

COUNT = 10_000
VALUES: tuple[Values, ...] = ("fp32", "fp16", "bf16", "int8", "int4")


@pytest.mark.parametrize("values", VALUES)
def test_a_reliable_frame_is_header_and_body(values: Values) -> None:
    layout = FrameLayout(AccumulatorBody(values, COUNT))
    assert layout.start == SIZE
    assert layout.nbytes == SIZE + layout.body.nbytes
    assert layout.contract == RELIABLE


@pytest.mark.parametrize("values", VALUES)
def test_on_a_tolerant_hop_everything_before_the_values_is_critical_and_cells_are_aligned(values: Values) -> None:
    layout = FrameLayout(AccumulatorBody(values, COUNT), tolerance=0.9)
    first_value = layout.start + layout.body.scales
    assert first_value % CELL == 0
    assert layout.contract.critical == ((0, first_value),)
    assert layout.contract.tolerance == 0.9
    layout.contract.check(layout.nbytes)


@pytest.mark.parametrize("values", VALUES)
def test_counts_and_body_do_not_overlap(values: Values) -> None:
    layout = FrameLayout(AccumulatorBody(values, COUNT), tolerance=0.9)
    frame = torch.zeros(layout.nbytes, dtype=torch.uint8)
    layout.counts_of(frame).fill_(-1)
    assert not layout.body_of(frame).any()
    assert not frame[:SIZE].any()
    assert layout.counts_of(frame).numel() == layout.body.cells
    assert layout.body_of(frame).numel() == layout.body.nbytes


@pytest.mark.parametrize("values", VALUES)
def test_lost_bytes_are_the_cells_that_hold_them(values: Values) -> None:
    layout = FrameLayout(AccumulatorBody(values, COUNT), tolerance=0.5)
    first, cells = layout.start + layout.body.scales, layout.body.cells
    whole_cells = ((first + CELL, 2 * CELL), (first + (cells - 1) * CELL, layout.nbytes - first - (cells - 1) * CELL))
    assert layout.missing(delivery(layout, whole_cells)) == [1, 2, cells - 1]
    assert layout.missing(delivery(layout, ((first + 10, 1),))) == [0]
    assert layout.missing(delivery(layout, ())) == []


def delivery(layout: FrameLayout, missing: tuple[tuple[int, int], ...]) -> Delivery:
    lost = sum(length for _, length in missing)
    return Delivery(1, layout.nbytes, layout.nbytes - lost, missing, "threshold", 0.0)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_hops_in_a_row_deliver_the_tolerance_together(depth: int) -> None:
    assert hop_tolerance(0.9, depth) ** depth == pytest.approx(0.9)
    assert hop_tolerance(1.0, depth) == 1.0


def test_a_tree_without_hops_has_the_tolerance_itself() -> None:
    assert hop_tolerance(0.9, 0) == 0.9
