"""The front end's types have the fields of the API's responses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gradwire.dashboard import schema

SOURCE = (Path(__file__).parents[2] / "dashboard" / "src" / "lib" / "api.ts").read_text()
PAIRS = {
    "RunBrief": schema.RunBrief,
    "Split": schema.StepSplitView,
    "Decision": schema.DecisionMade,
    "Overview": schema.Overview,
    "Series": schema.SeriesView,
    "SeriesData": schema.SeriesData,
    "Decisions": schema.Decisions,
    "Tree": schema.TreeShown,
    "Plan": schema.PlanShown,
    "Member": schema.MemberView,
    "Topology": schema.Topology,
    "Link": schema.LinkNow,
    "Links": schema.Links,
    "Pair": schema.PairTransport,
    "Fault": schema.FaultSeen,
    "Faults": schema.Faults,
    "Configuration": schema.Configuration,
}


@pytest.mark.parametrize("name", PAIRS)
def test_an_interface_has_the_fields_of_its_response(name: str) -> None:
    body = re.search(rf"export interface {name} {{\n(.*?)^}}", SOURCE, re.S | re.M)
    assert body, name
    assert set(re.findall(r"^  (\w+):", body[1], re.M)) == set(PAIRS[name].__struct_fields__)
