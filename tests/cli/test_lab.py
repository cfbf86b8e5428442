"""gradwire lab for a user: help, lists, drawings, and one clear line for each error."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gradwire.cli.lab_live import LabView
from gradwire.network import PRESETS, preset

GRADWIRE = [sys.executable, "-m", "gradwire"]


def gradwire(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*GRADWIRE, *words], capture_output=True, text=True, timeout=60, check=False, env=env)


def test_help_does_not_import_torch() -> None:
    code = "import sys; from gradwire.cli.main import cli; cli.main(['lab', '--help'], standalone_mode=False); "
    done = subprocess.run(
        [sys.executable, "-c", code + "sys.exit('torch' in sys.modules)"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "run" in done.stdout


def test_presets_are_listed_as_text_and_json() -> None:
    assert all(name in gradwire("lab", "presets").stdout for name in PRESETS)
    assert set(json.loads(gradwire("lab", "presets", "--json").stdout)) == set(PRESETS)


@pytest.mark.parametrize("name", ["lan100", "netstorm9-dynamic", "geo-aws10", "fluctuating"])
def test_show_draws_every_shape(name: str, tmp_path: Path) -> None:
    shown = gradwire("lab", "show", "--net", name)
    assert shown.returncode == 0, shown.stderr
    assert name in shown.stdout
    picture = tmp_path / "net.svg"
    assert gradwire("lab", "show", "--net", name, "--svg", str(picture)).returncode == 0
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    described = json.loads(gradwire("lab", "show", "--net", name, "--json").stdout)
    assert [host["name"] for host in described["hosts"]] == [host.name for host in preset(name).hosts]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "--net", "lan99", "--", "true"], "unknown preset 'lan99'"),
        (["run", "--net", "lan100", "--hosts", "1", "--", "true"], "hosts: must be in 2..200, but it is 1"),
        (["run", "--net", "geo-aws10", "--hosts", "4", "--", "true"], "geo-aws10 always has 10 hosts, but 4"),
        (["run", "--net", "/nowhere.toml", "--", "true"], "cannot read /nowhere.toml"),
        (["show", "--net", "bad.toml"], "cannot read bad.toml"),
        (["show", "--svg", "/no/dir/net.svg"], "show --svg: cannot write /no/dir/net.svg"),
        (["run", "--net", "lan100"], "Missing argument 'COMMAND...'"),
        (["run", "--net", "lan100", "--port", "0", "--", "true"], "not in the range"),
        (["run", "--dilate", "0", "--", "true"], "dilate: must be a number from 1"),
        (["run", "--dilate", "nan", "--", "true"], "dilate: must be a number from 1"),
        (["check", "--dilate", "1e9"], "dilate: must be a number from 1"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_two(words: list[str], says: str) -> None:
    done = gradwire("lab", *words)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_loopback_run_prefixes_output_and_gives_json_and_the_exit_code(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    script = "echo hello from $RANK; test $RANK != 1 || exit 5"
    words = ["lab", "run", "--hosts", "2", "--mode", "loopback", "--json", str(result), "--", "sh", "-c", script]
    done = gradwire(*words)
    assert done.returncode == 5
    assert "h0 | hello from 0" in done.stdout
    assert "h1 | hello from 1" in done.stdout
    report = json.loads(result.read_text())
    assert report["mode"] == "loopback"
    assert report["code"] == 5
    assert "not for measurements" in report["verdict"]


def test_a_dilated_run_reports_its_factor_and_undilated_seconds(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    words = ["lab", "run", "--hosts", "2", "--mode", "loopback", "--dilate", "2", "--json", str(result), "--"]
    began = time.monotonic()
    done = gradwire(*words, sys.executable, "-c", "import time; time.sleep(0.2)")
    real = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    assert "all times are undilated" in done.stderr
    report = json.loads(result.read_text())
    assert report["dilate"] == 2
    assert 0.2 <= report["seconds"] <= real / 2


@pytest.mark.parametrize("result", ["missing/result.json", "file/result.json", "."])
def test_a_result_that_cannot_be_written_is_reported_before_the_run(result: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = ["lab", "run", "--hosts", "2", "--mode", "loopback", "--json", str(tmp_path / result), "--"]
    done = gradwire(*words, "touch", str(tmp_path / "ran"))
    assert done.returncode == 2
    assert "run --json: cannot write" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "ran").exists()


def test_options_after_the_command_belong_to_the_command() -> None:
    done = gradwire("lab", "run", "--mode", "loopback", "--hosts", "2", "echo", "--hosts", "9", "--net", "x")
    assert done.returncode == 0
    assert "h1 | --hosts 9 --net x" in done.stdout


def test_a_missing_tool_is_named_with_its_package(tmp_path: Path) -> None:
    net = tmp_path / "net.toml"
    net.write_text('hosts = 2\n[access]\nrate = "10mbit"\n[[cross]]\nfrom = "h0"\nto = "h1"\n')
    words = ["lab", "run", "--net", str(net), "--mode", "loopback", "--", "/bin/true"]
    done = gradwire(*words, env={"PATH": str(tmp_path), "GRADWIRE_RUNTIME_DIR": str(tmp_path)})
    assert done.returncode == 2
    assert "cross traffic needs iperf3, which is not installed; apt-get install iperf3" in done.stderr


def test_long_lines_of_a_command_are_folded_above_the_view() -> None:
    from io import StringIO

    from rich.console import Console
    from rich.live import Live

    written = StringIO()
    view = LabView(shown=False)
    view._live = Live("a view " * 5, console=Console(file=written, width=20, force_terminal=True), auto_refresh=False)
    with view:
        view.line("x" * 50, err=False)
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written.getvalue()).replace("\r", "").splitlines()
    assert lines[:3] == ["x" * 20, "x" * 20, "x" * 10]
