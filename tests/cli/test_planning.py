"""`gradwire plan` and `gradwire simulate`, as a person types them."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

from click.testing import CliRunner

from gradwire.cli.plan import plan_command
from gradwire.cli.simulate import simulate_command


def test_a_plan_is_printed_and_drawn(tmp_path: Path) -> None:
    svg = tmp_path / "plan.svg"
    done = CliRunner().invoke(plan_command, ["--net", "netstorm9:1", "--model", "resnet50", "--svg", str(svg)])
    assert done.exit_code == 0, done.output
    assert "summed at site" in done.output
    assert "predicted" in done.output
    drawn = ElementTree.fromstring(svg.read_text())
    assert len(drawn.findall(".//{http://www.w3.org/2000/svg}circle")) >= 9 * 2


def test_a_plan_as_json_can_be_read_back() -> None:
    done = CliRunner().invoke(plan_command, ["--net", "netstorm9:0", "--planner", "star", "--json"])
    plan = json.loads(done.output)
    assert plan["trees"][0]["share"] == 1.0
    assert plan["routes"]["9->1"][0] == 9


def test_planners_are_compared_fastest_first() -> None:
    options = ["--net", "netstorm9", "--model", "20MB", "--planner", "star,fapt,loadaware"]
    done = CliRunner().invoke(simulate_command, [*options, "--json"])
    rows = json.loads(done.output)["rows"]
    assert [row["planner"] for row in rows] == ["loadaware", "fapt", "star"]
    table = CliRunner().invoke(simulate_command, options)
    assert "loadaware" in table.output
    assert "1.00x" in table.output


def test_compression_makes_it_faster() -> None:
    def seconds(*more: str) -> float:
        options = ["--net", "netstorm9", "--model", "50MB", "--planner", "fapt", "--json", *more]
        return json.loads(CliRunner().invoke(simulate_command, options).output)["rows"][0]["simulated"]

    assert seconds("--ratio", "0.1") < 0.2 * seconds()


def test_mistakes_are_explained() -> None:
    for command, options, word in (
        (plan_command, ["--net", "netstrom"], "netstorm9"),
        (simulate_command, ["--net", "netstorm9", "--planner", "best"], "loadaware"),
        (simulate_command, ["--net", "generated:0"], "generated:SITES"),
        (plan_command, ["--net", "netstorm9", "--model", "gpt9"], "vgg16"),
    ):
        done = CliRunner().invoke(command, options)
        assert done.exit_code == 1
        assert word in done.output
        assert "Traceback" not in done.output
