"""Programs: typical scripts run unchanged on a gradwire group, started by torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
# Two ranks import torch on a machine that may be busy with other tests.
DEADLINE = 150.0


def torchrun(*arguments: str, **settings: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GRADWIRE_")}
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *arguments],
        env={**kept, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **settings},
        capture_output=True, text=True, timeout=DEADLINE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_trainer_ends_with_the_weights_it_has_on_gloo() -> None:
    """Two ranks: a sum of two numbers does not depend on the order, so the backends agree to the bit."""
    trainer = str(FOLDER / "trainer.py")
    assert torchrun(trainer, "gradwire") == torchrun(trainer, "gloo") != ""


def test_a_script_that_names_gloo_runs_on_gradwire_when_the_environment_says_so() -> None:
    script = str(FOLDER / "names_gloo.py")
    assert "backend gradwire" in torchrun("-m", "gradwire.run", script, GRADWIRE_BACKEND="gradwire")


def test_a_sharded_model_trains_is_saved_and_loaded(tmp_path: Path) -> None:
    assert "saved and loaded" in torchrun(str(FOLDER / "sharded.py"), str(tmp_path / "saved"))


def test_torchrun_restarts_a_failed_job() -> None:
    assert "completed after 1 restart" in torchrun("--max-restarts", "1", str(FOLDER / "restart.py"))
