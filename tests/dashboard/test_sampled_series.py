"""A sampled series keeps extremes and means in bounded memory, and returns no more intervals than requested."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.dashboard.sampled_series import SampledSeries

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=3000)


@given(VALUES, st.sampled_from([2, 16, 512]), st.integers(1, 400))
def test_a_window_over_all_holds_the_extremes_and_the_mean(values: list[float], capacity: int, width: int) -> None:
    series = SampledSeries(capacity)
    for at, value in enumerate(values):
        series.append(float(at), value)
    window = series.window(0.0, len(values) - 1.0 or 1.0, width)
    assert window.low.min() == min(values)
    assert window.high.max() == max(values)
    assert np.all(window.low <= window.mean + 1e-6)
    assert np.all(window.mean <= window.high + 1e-6)
    assert np.all(np.diff(window.at) > 0)
    assert series.points == len(values)


def test_a_spike_survives_any_number_of_merges() -> None:
    series = SampledSeries(64)
    for at in range(100_000):
        series.append(float(at), 1.0 if at != 54_321 else 99.0)
    window = series.window(0.0, 100_000.0, 50)
    assert window.high.max() == 99.0
    hit = window.at[int(window.high.argmax())]
    assert 50_000 < hit <= 54_321
    assert sum(array.nbytes for array in (window.at, window.low)) < 2000


def test_zooming_in_shows_every_point_that_is_kept() -> None:
    series = SampledSeries(1024)
    for at in range(1000):
        series.append(float(at), float(at % 7))
    window = series.window(100.0, 110.0, 500)
    assert window.at.tolist() == [float(at) for at in range(99, 112)]
    assert window.mean.tolist() == [float(at % 7) for at in range(99, 112)]


def test_the_number_of_intervals_follows_the_width() -> None:
    series = SampledSeries()
    for at in range(10_000):
        series.append(float(at), 0.5)
    assert 90 <= series.window(0.0, 9999.0, 100).at.size <= 103


def test_an_empty_series_gives_an_empty_window() -> None:
    assert SampledSeries().window(0.0, 1.0, 10).at.size == 0


def test_a_capacity_that_cannot_be_halved_is_refused() -> None:
    with pytest.raises(ValueError, match="even"):
        SampledSeries(7)
