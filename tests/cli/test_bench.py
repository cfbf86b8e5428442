"""`gradwire bench`: every claim names scripts that exist and take the arguments it gives them."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from gradwire.cli.bench import CLAIMS, bench_command, folder, lines
from gradwire.errors import ConfigError


@pytest.mark.parametrize("name", CLAIMS)
@pytest.mark.parametrize("quick", [True, False])
def test_every_claim_runs_scripts_that_exist(name: str, quick: bool, tmp_path: Path) -> None:
    for words in lines(CLAIMS[name], tmp_path, quick):
        assert (folder() / words[0]).is_file()
        text = (folder() / words[0]).read_text()
        shared = (folder() / "harness" / "case.py").read_text() if "harness.case" in text else ""
        unknown = [word for word in words if word.startswith("--") and f'"{word}"' not in text + shared]
        assert not unknown, words


@pytest.mark.parametrize("name", CLAIMS)
def test_every_command_of_a_claim_writes_into_out_even_with_a_space_in_it(name: str, tmp_path: Path) -> None:
    out = tmp_path / "a b"
    for words in lines(CLAIMS[name], out, quick=True):
        option = "--json" if "--json" in words else "--out"
        assert words[words.index(option) + 1].startswith(str(out))


def test_the_changing_networks_of_netsenseml_are_run() -> None:
    assert "netsense_changing.py" in [words[0] for words in lines(CLAIMS["netsenseml"], Path("out"), quick=True)]


def test_commands_are_run_from_a_folder_that_is_made_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "not yet" / "there"
    ran = []

    def run(words: list[str]) -> int:
        assert out.is_dir()
        ran.append(words)
        return 0

    monkeypatch.setattr("gradwire.cli.bench.run_to_end", run)
    done = CliRunner().invoke(bench_command, ["ltp", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert [words[2:5] for words in ran] == [
        ["clean", "--json", str(out / "ltp-clean.json")],
        ["grid", "--json", str(out / "ltp-grid.json")],
    ]
    assert f"--json '{out}/ltp-clean.json'" in done.stderr


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = CliRunner().invoke(bench_command, ["ltp", "--out", str(tmp_path / "file")])
    assert isinstance(done.exception, ConfigError)
    assert "bench --out: cannot write into" in str(done.exception)


def test_list_names_them_all() -> None:
    listed = CliRunner().invoke(bench_command, ["list"])
    assert listed.exit_code == 0
    assert all(name in listed.output for name in CLAIMS)
