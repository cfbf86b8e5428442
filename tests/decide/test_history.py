"""The history of rungs: what was measured counts until the network changes, the less the longer ago."""

from __future__ import annotations

import pytest

from gradwire.decide.history import AGEING, History
from gradwire.types import StepFacts

ONE, OTHER = 1, 2


def taken(seconds: float) -> StepFacts:
    return StepFacts(seconds, 0.0, seconds / 2, 10**6, 2, 0.0, 0.0, ())


def measured(history: History, index: int, *times: float) -> History:
    for seconds in times:
        history.take(index, taken(seconds))
    return history


def test_one_step_is_no_measurement_and_the_median_ignores_an_outlier() -> None:
    history = measured(History(), ONE, 0.2)
    assert history.seconds(ONE) is None
    assert measured(history, ONE, 0.2, 9.0, 0.2).seconds(ONE) == pytest.approx(0.2)


def test_a_rung_that_was_left_is_remembered_until_the_network_changes() -> None:
    history = measured(History(), ONE, *[0.2] * 10)
    measured(history, OTHER, *[0.3] * 5000)
    assert history.seconds(ONE) == pytest.approx(0.2)
    history.forget()
    assert history.seconds(ONE) is None


def test_its_error_grows_with_the_steps_since_and_falls_when_it_is_measured_again() -> None:
    history = measured(History(), ONE, *[0.2] * 10)
    fresh = history.error(ONE)
    assert measured(history, OTHER, *[0.3] * 1000).error(ONE) > max(2 * fresh, 900 * AGEING)
    assert measured(history, ONE, 0.2).error(ONE) <= fresh


def test_the_model_is_right_within_its_band_and_for_rungs_that_were_not_measured() -> None:
    history = measured(History(), ONE, 0.2, 0.2)
    assert history.model_error(ONE, 0.19) == 1.0
    assert history.model_error(ONE, 0.1) == pytest.approx(2.0)
    assert history.model_error(OTHER, 0.1) == 1.0


def test_a_steady_measurement_outweighs_the_model_and_one_of_few_unsteady_steps_does_not() -> None:
    steady, unsteady = measured(History(), ONE, *[0.2] * 10), measured(History(), ONE, 0.1, 0.3)
    assert steady.blended(ONE, 0.4) == pytest.approx(0.2, rel=0.02)
    assert unsteady.blended(ONE, 0.4) > 0.35
    assert steady.blended(OTHER, 0.4) == 0.4
