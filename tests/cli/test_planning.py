"""`gradwire plan` and `gradwire simulate` on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from gradwire.cli.main import main
from gradwire.cli.plan import plan_command
from gradwire.cli.simulate import simulate_command

RunMistake = Callable[..., str]


@pytest.fixture
def mistake(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunMistake:
    """What `gradwire WORDS` says of a mistake, which is one line, with exit code 2."""

    def run(*words: str) -> str:
        monkeypatch.setattr("sys.argv", ["gradwire", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        line, end, rest = capsys.readouterr().err.partition("\n")
        assert (end, rest) == ("\n", "")
        return line

    return run


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


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("plan --net netstrom", "netstorm9"),
        ("simulate --net netstorm9 --planner best", "loadaware"),
        ("simulate --net generated:0", "generated:SITES"),
        ("simulate --net generated:²", "generated:SITES"),
        ("simulate --net generated:1", "generated:1 has fewer than 2 sites"),
        ("plan --net netstorm9 --model gpt9", "vgg16"),
        ("plan --net netstorm9 --svg /no/dir/plan.svg", "plan --svg: cannot write /no/dir/plan.svg"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_two(words: str, says: str, mistake: RunMistake) -> None:
    assert says in mistake(*words.split())


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("one.json", b'{"sites": ["a"], "links": []}', "fewer than 2 sites"),
        ("far.json", b'{"sites": ["a", "b"], "links": [{"from": "a", "to": "c", "rate": "1mbit"}]}', "'c' is not in"),
        ("word.csv", b"region_a,region_b,rtt_ms,bandwidth_gbps\na,b,10,fast\n", "float: 'fast'"),
        ("half.csv", b"region_a,region_b,rtt_ms,bandwidth_gbps\na,b,10\n", "half.csv"),
        ("old.json", b"\xe9", "byte 0xe9"),
        ("old.csv", b"\xe9", "byte 0xe9"),
        ("old.toml", b"\xe9", "save it as UTF-8"),
    ],
)
def test_a_file_that_makes_no_network_is_named(
    name: str, content: bytes, says: str, mistake: RunMistake, tmp_path: Path
) -> None:
    net = tmp_path / name
    net.write_bytes(content)
    line = mistake("simulate", "--net", str(net))
    assert str(net) in line
    assert says in line
