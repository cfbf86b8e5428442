"""Underlay: the planner's matrix has the rates and round trips of the network that the lab emulates."""

from __future__ import annotations

import pytest

from gradwire.network import preset
from gradwire.simulate.underlay import matrix_of


def test_a_link_with_a_trace_has_the_mean_rate_of_the_trace() -> None:
    network = preset("lte", 3)
    matrix = matrix_of(network)
    up = next(link.spec for link in network.links if link.source == network.ranks[0].name)
    assert up.trace is not None
    assert matrix.up[0] == pytest.approx(float(up.mean_rate))
    assert matrix.rate[0, 1] <= float(up.mean_rate)


def test_round_trips_are_the_sum_of_both_directions() -> None:
    matrix = matrix_of(preset("wan-us-eu", 4))
    assert matrix.rtprop[0, 2] == pytest.approx(matrix.rtprop[2, 0])
    assert matrix.rtprop.max() > 0.05
