"""Training scripts of other projects run on gradwire, unchanged or with two changed lines."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.presence import needs

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / "examples" / "clients"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
# Ray starts a cluster of its own, and every rank imports torch on a machine that may be busy.
DEADLINE = 450.0

pytestmark = pytest.mark.timeout(500)


def run(command: list[str], home: Path, **settings: str) -> str:
    """What the command printed, both streams; its failure is the test's. Its home is a folder of the test's own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GRADWIRE_")}
    quiet = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HOME": str(home)}
    done = subprocess.run(
        command,
        cwd=home,
        env={**kept, **quiet, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def losses(output: str) -> list[float]:
    return [float(value) for value in re.findall(r"loss ([\d.]+)", output)]


def code_of(script: Path) -> str:
    """The script without its docstring."""
    return script.read_text().split('"""', 2)[2]


def test_an_unchanged_gpt_script_trains_stops_and_continues(tmp_path: Path) -> None:
    script = CLIENTS / "minigpt.py"
    assert "gradwire" not in code_of(script)
    command = [*TORCHRUN, "-m", "gradwire.run", str(script), "--out", str(tmp_path / "out"), "--rate", "1e-2"]
    begun = run([*command, "--steps", "25"], tmp_path, GRADWIRE_LEVEL="int8", GRADWIRE_OBSERVE_VERIFY="5")
    first, last = losses(begun)
    assert last < first - 0.5
    assert "25 steps, 107,008 parameters" in begun, "fifty micro-batches, of which every second one is sent"
    assert "int8 x25" in begun
    resumed = run([*command, "--steps", "35", "--resume"], tmp_path, GRADWIRE_LEVEL="int8")
    assert "step 26" in resumed
    assert "10 steps" in resumed
    assert losses(resumed)[0] < first - 0.5, "it began anew instead of going on"


TWO_LINES = ["with_accelerate.py", "with_lightning.py", "with_ray.py"]


@pytest.mark.parametrize("name", TWO_LINES)
def test_a_framework_takes_two_lines(name: str) -> None:
    lines = [line.strip() for line in code_of(CLIENTS / name).splitlines() if "gradwire" in line]
    assert len(lines) == 2, lines
    assert lines[0] == "import gradwire"
    assert "gradwire.attach(" in lines[1]


def trained(output: str, steps: int) -> None:
    """The loss fell, and every optimiser step, not every micro-batch, was synchronised by gradwire."""
    values = losses(output)
    assert values[-1] < 1.2, "chance is 1.6"
    assert f"{steps} steps, 11,781 parameters" in output
    assert f"int8 x{steps}" in output


def test_accelerate_with_accumulation_clipping_and_bfloat16(tmp_path: Path) -> None:
    needs("accelerate", "clients")
    command = [*TORCHRUN, str(CLIENTS / "with_accelerate.py"), "--mixed-precision", "bf16"]
    trained(run(command, tmp_path, GRADWIRE_LEVEL="int8"), steps=24)


def test_lightning_with_its_own_launcher_accumulation_and_bfloat16(tmp_path: Path) -> None:
    needs("lightning", "clients")
    command = [sys.executable, str(CLIENTS / "with_lightning.py"), "--precision", "bf16-mixed"]
    trained(run(command, tmp_path, GRADWIRE_LEVEL="int8"), steps=24)


def test_hugging_faces_trainer_unchanged_with_accumulation_clipping_and_bfloat16(tmp_path: Path) -> None:
    needs("transformers", "clients")
    script = CLIENTS / "with_trainer.py"
    assert "gradwire" not in code_of(script)
    command = [*TORCHRUN, "-m", "gradwire.run", str(script), "--bf16", "--out", str(tmp_path / "out")]
    trained(run(command, tmp_path, GRADWIRE_LEVEL="int8"), steps=24)


def test_lightning_registers_the_pair_with_its_strategy(tmp_path: Path) -> None:
    """Its DDP strategy registers hooks on GPUs only, by the function that is called here."""
    needs("lightning", "clients")
    script = tmp_path / "pair.py"
    script.write_text(LIGHTNING_PAIR)
    assert "int8 x3" in run([*TORCHRUN, str(script)], tmp_path)


LIGHTNING_PAIR = """
import torch
import torch.distributed as dist
from lightning.pytorch.overrides.distributed import _register_ddp_comm_hook
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(64, 64))
state, hook = gradwire.comm_hook("int8")
_register_ddp_comm_hook(model=model, ddp_comm_state=state, ddp_comm_hook=hook)
for _ in range(3):
    model(torch.randn(8, 64)).square().mean().backward()
if dist.get_rank() == 0:
    print(state.handle.summary())
state.handle.close()
dist.destroy_process_group()
"""


def test_ray_train_on_a_local_cluster(tmp_path: Path) -> None:
    needs("ray", "clients")
    # Ray keeps its sockets there, whose paths must be short.
    with TemporaryDirectory(prefix="gw") as folder:
        command = [sys.executable, str(CLIENTS / "with_ray.py")]
        trained(run(command, tmp_path, GRADWIRE_LEVEL="int8", RAY_TMPDIR=folder), steps=48)
