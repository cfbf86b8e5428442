"""Snippets: the examples run as their first lines say, and a wrong setting is reported in one line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
# Two ranks import torch and gradwire on a machine that may be busy with other tests.
DEADLINE = 120.0


def environment(**more: str) -> dict[str, str]:
    """This process's environment, without gradwire's settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GRADWIRE_")}
    return {**kept, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **more}


def run(command: list[str], **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, env=environment(**settings), capture_output=True, text=True, timeout=DEADLINE, check=False
    )


def torchrun(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    done = run([*TORCHRUN, *arguments], **settings)
    assert done.returncode == 0, done.stderr
    return done


def test_ddp_trains_saves_and_resumes(tmp_path: Path) -> None:
    folder = str(tmp_path / "saved")
    begun = torchrun("examples/ddp.py", "--steps", "6", "--checkpoint", folder, "--level", "topk:0.05+int8").stdout
    assert "steps 0 to 6" in begun
    assert "6 steps, 19,210 parameters" in begun  # twelve micro-batches, six of which synchronised
    assert "topk:0.25+int8" in begun  # the first step of the warm-up
    assert sorted(file.name for file in (tmp_path / "saved").iterdir()) == ["rank0.pt", "rank1.pt"]
    resumed = torchrun("examples/ddp.py", "--steps", "10", "--checkpoint", folder, "--level", "topk:0.05+int8").stdout
    assert "steps 6 to 10" in resumed
    assert "topk:0.227+int8" in resumed
    assert "topk:0.25+int8" not in resumed, "the warm-up continues at the step of the checkpoint"


def test_hsdp_trains_on_two_sites() -> None:
    output = torchrun("examples/hsdp.py", "--steps", "30", "--level", "int8").stdout
    accuracy = re.search(r"2 sites of 1, accuracy ([\d.]+)", output)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.7, "chance is 0.1"
    assert "30 steps" in output
    assert "int8 x60" in output


def test_hsdp_trains_with_local_steps_between_the_sites() -> None:
    output = torchrun("examples/hsdp.py", "--steps", "25", "--level", "int8", "--sync-every", "10").stdout
    accuracy = re.search(r"2 sites of 1, accuracy ([\d.]+)", output)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.7, "chance is 0.1"
    assert "3 outer steps" in output
    assert "(last: synchronise() was called)" in output


def test_an_unchanged_script_is_attached_and_its_summary_printed() -> None:
    script = ROOT / "examples" / "no_change.py"
    code = script.read_text().split('"""')[2]
    assert "gradwire" not in code
    done = torchrun("-m", "gradwire.run", str(script), "--steps", "5", GRADWIRE_LEVEL="int8")
    assert "after 5 steps" in done.stdout
    assert done.stderr.count("gradwire on rank 0 of 2: 5 steps, 11,781 parameters") == 1
    assert "the configuration sets level = int8" in done.stderr
    assert "gradwire on rank 1" not in done.stderr


MISTAKES = [
    ({"GRADWIRE_LEVEL": "int9"}, ["examples/no_change.py"], "'int9' in 'int9' is not a stage"),
    ({"GRADWIRE_LEVLE": "int8"}, ["examples/no_change.py"], "GRADWIRE_LEVLE is not a setting"),
    ({"GRADWIRE_CONFIG": "nowhere.toml"}, ["examples/no_change.py"], "nowhere.toml: No such file"),
    ({}, ["examples/none.py"], "no script 'examples/none.py'"),
]


@pytest.mark.parametrize(("settings", "arguments", "says"), MISTAKES, ids=[says for *_, says in MISTAKES])
def test_a_wrong_setting_is_one_line_and_a_failure_on_every_rank(
    settings: dict[str, str], arguments: list[str], says: str
) -> None:
    # Without torchrun, which stops the others when the first has failed: here each rank must find the mistake itself.
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    command = [sys.executable, "-m", "gradwire.run", *arguments]
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda rank: run(command, **settings, **job, RANK=rank), ("0", "1")))
    for done in answers:
        assert done.returncode == 2
        lines = done.stderr.strip().splitlines()
        assert len(lines) == 1, done.stderr
        assert lines[0].startswith("gradwire: ")
        assert says in lines[0]


def test_a_level_that_cannot_work_stops_the_whole_job() -> None:
    # Found when the script makes its model, on every rank; torchrun then fails as a whole.
    done = run([*TORCHRUN, "-m", "gradwire.run", "examples/no_change.py"], GRADWIRE_LEVEL="lowrank:4+int2")
    assert done.returncode != 0
    assert "gradwire: level: lowrank can be combined" in done.stderr
