"""Run by the Python of a clean environment: the installed gradwire is whole, and two ranks train with it.

python smoke.py SITE      SITE is the folder that gradwire must come from
"""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import tempfile
from pathlib import Path


def train(rank: int, store: str) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import gradwire

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(64, 8))
    handle = gradwire.attach(model, "topk:0.05+int8")
    model(torch.randn(4, 64)).sum().backward()
    assert handle.summary().levels == {"topk:0.25+int8": 1}  # the first step of its warm-up
    handle.close()
    dist.destroy_process_group()


def main(site: Path) -> None:
    import gradwire
    from gradwire import _native

    for module in (gradwire, _native):
        assert module.__file__ is not None
        assert Path(module.__file__).is_relative_to(site), module.__file__
    told = subprocess.run(
        [Path(sys.executable).with_name("gradwire"), "lab", "presets"], capture_output=True, check=True
    )
    assert b"lan100" in told.stdout
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        ranks = [context.Process(target=train, args=(rank, f"{folder}/store")) for rank in range(2)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(300)
        assert [rank.exitcode for rank in ranks] == [0, 0]
    print("smoke: gradwire", gradwire.__version__, "on", _native.isa())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
