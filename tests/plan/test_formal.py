"""The plan-change protocol, checked by spin over every interleaving of a small model."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gradwire.plan.membership.member_state import TRANSITIONS, MemberState

CHECK = Path(__file__).parents[2] / "formal" / "check"
MODEL = CHECK.with_name("policy.pml").read_text()


@pytest.mark.skipif(shutil.which("spin") is None, reason="spin is not installed (apt-get install spin)")
@pytest.mark.skipif(shutil.which("cc") is None, reason="spin needs a C compiler")
@pytest.mark.timeout(600)
@pytest.mark.slow
def test_the_model_holds_and_its_broken_variants_are_caught() -> None:
    done = subprocess.run([CHECK], capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stderr
    assert "no step mixes plans" in done.stdout
    assert done.stdout.count("caught") == 2


def test_the_model_has_the_states_and_only_transitions_of_a_member() -> None:
    declared = re.search(r"mtype = \{([^}]*)\}", MODEL)
    assert declared is not None
    assert {name.strip() for name in declared.group(1).split(",")} == {state.name for state in MemberState}
    changes = set(re.findall(r"CHANGE\(me, (\w+), (\w+)\)", MODEL))
    assert len(changes) == 4
    assert changes <= {(before.name, after.name) for (before, _), after in TRANSITIONS.items()}
