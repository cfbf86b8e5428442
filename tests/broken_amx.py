"""Some virtual machines advertise AMX and refuse its instructions: bfloat16 products of torch end with SIGILL there.

That is the machine's fault and happens without gradwire. `avoid` limits oneDNN to AVX-512 for this process and its
children, on such a machine only; tests of bfloat16 then run as they do everywhere else.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

LIMIT = "ONEDNN_MAX_CPU_ISA"
PRODUCT = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); torch.nn.functional.linear(x, x)"


def advertised() -> bool:
    facts = Path("/proc/cpuinfo")
    return facts.is_file() and "amx_bf16" in facts.read_text()


def refused() -> bool:
    done = subprocess.run([sys.executable, "-c", PRODUCT], stderr=subprocess.DEVNULL, timeout=120, check=False)
    return done.returncode == -signal.SIGILL


def avoid() -> None:
    """Call before torch computes anything in this process."""
    if LIMIT not in os.environ and advertised() and refused():
        os.environ[LIMIT] = "AVX512_CORE_BF16"
