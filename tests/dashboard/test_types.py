"""The front end's types name the fields that the interface answers with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gradwire.dashboard import answers as a

SOURCE = (Path(__file__).parents[2] / "dashboard" / "src" / "lib" / "api.ts").read_text()
PAIRS = {
    "RunBrief": a.RunBrief,
    "Split": a.StepSplitView,
    "Decision": a.DecisionMade,
    "Overview": a.Overview,
    "Series": a.SeriesView,
    "SeriesData": a.SeriesData,
    "Decisions": a.Decisions,
    "Tree": a.TreeShown,
    "Plan": a.PlanShown,
    "Member": a.MemberView,
    "Topology": a.Topology,
    "Link": a.LinkNow,
    "Links": a.Links,
    "Pair": a.PairTransport,
    "Fault": a.FaultSeen,
    "Faults": a.Faults,
    "Configuration": a.Configuration,
}


@pytest.mark.parametrize("name", PAIRS)
def test_an_interface_has_the_fields_of_its_answer(name: str) -> None:
    body = re.search(rf"export interface {name} {{\n(.*?)^}}", SOURCE, re.S | re.M)
    assert body, name
    assert set(re.findall(r"^  (\w+):", body[1], re.M)) == set(PAIRS[name].__struct_fields__)
