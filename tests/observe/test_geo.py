"""A site's name gives its coordinates if it is a known place."""

from __future__ import annotations

import pytest

from gradwire.network import PRESETS, load_network
from gradwire.observe.geo import CITIES, REGIONS, where


@pytest.mark.parametrize("name", ["eu-central-1", "eu-central-1b", "europe-west3-a", "germanywestcentral", "Frankfurt"])
def test_regions_zones_and_cities_lead_to_the_same_place(name: str) -> None:
    assert where(name) == (50.1, 8.7)


def test_a_name_may_carry_its_coordinates() -> None:
    assert where("basement @ 48.1, -11.6") == (48.1, -11.6)
    assert where("nowhere@91,0") is None
    assert where("nowhere@0,181") is None


@pytest.mark.parametrize("name", ["", "host0", "rack-17", "s3", "eu-central-9"])
def test_other_names_are_nowhere(name: str) -> None:
    assert where(name) is None


def test_every_region_has_a_city_on_earth() -> None:
    assert set(REGIONS.values()) <= set(CITIES)
    assert all(abs(latitude) <= 90 and abs(longitude) <= 180 for latitude, longitude in CITIES.values())


def test_the_preset_of_regions_is_on_the_map() -> None:
    assert "geo-aws10" in PRESETS
    assert all(where(rank.name) for rank in load_network("geo-aws10").ranks)
