"""`gradwire bench`: every claim names scripts that exist and take the arguments it gives them."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from gradwire.cli.bench import CLAIMS, bench_command, folder, lines


@pytest.mark.parametrize("name", CLAIMS)
@pytest.mark.parametrize("quick", [True, False])
def test_every_claim_runs_scripts_that_exist(name: str, quick: bool, tmp_path: Path) -> None:
    for words in lines(CLAIMS[name], tmp_path, quick):
        assert (folder() / words[0]).is_file()
        text = (folder() / words[0]).read_text()
        shared = (folder() / "harness" / "case.py").read_text() if "harness.case" in text else ""
        unknown = [word for word in words if word.startswith("--") and f'"{word}"' not in text + shared]
        assert not unknown, words


def test_list_names_them_all() -> None:
    told = CliRunner().invoke(bench_command, ["list"])
    assert told.exit_code == 0
    assert all(name in told.output for name in CLAIMS)
