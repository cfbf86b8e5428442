"""The figures of README.md and docs/results/summary.md are those of the result files."""

from __future__ import annotations

from pathlib import Path

import pytest

from readme_table import BEGIN, END, README_ROWS, ROOT, ROWS, inserted, table, tables


@pytest.mark.parametrize(("page", "text"), tables().items(), ids=lambda value: getattr(value, "name", ""))
def test_the_page_shows_what_the_result_files_say(page: Path, text: str) -> None:
    shown = page.read_text().partition(BEGIN)[2].partition(END)[0].strip()
    assert shown == text, "run python benchmarks/readme_table.py --write"


def test_the_readme_shows_at_most_six_rows_and_every_one_of_them() -> None:
    assert len(README_ROWS) <= 6
    assert len(table(rows=README_ROWS).splitlines()) == 2 + len(README_ROWS)


def test_every_row_comes_from_a_file_that_is_there_or_is_left_out(tmp_path: Path) -> None:
    assert len(table(tmp_path).splitlines()) == 2
    for row in ROWS:
        path = ROOT / "docs" / "results" / f"{row.file}.json"
        assert path.exists() or row.what not in table()


def test_a_readme_without_marks_is_not_written_over() -> None:
    with pytest.raises(SystemExit, match="marks"):
        inserted("# gradwire\n", "| a |")
