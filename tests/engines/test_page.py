"""docs/howto/engines.md: every command of the page is one that the tests of this folder run."""

from __future__ import annotations

from tests.docs.blocks import blocks
from tests.engines.restarted_run import PAGE, command


def test_every_command_of_the_page_is_run_by_a_test_of_a_cluster() -> None:
    found = [block for block in blocks(PAGE) if block.is_command]
    assert [block.text for block in found if block.reason is None] == [
        command("restarts_ray"),
        command("gradwire doctor"),
        command("sbatch"),
    ]
    assert all(block.reason is None or len(block.reason) > 10 for block in found)
