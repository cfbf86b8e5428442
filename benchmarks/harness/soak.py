"""One rank of the soak: random collectives on random groups, each answer compared with gloo's.

All ranks draw from the same seed, so they agree about what comes next. Values are small whole numbers: every sum is
exact, and the two backends must agree to the bit.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

GROUPS = 4
LIMIT = timedelta(seconds=120)
KINDS = ("all_reduce", "async", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather", "barrier")


def held() -> dict[str, int]:
    """Resident kilobytes, threads and sockets of this process."""
    with open("/proc/self/status") as status:
        resident = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
    sockets = 0
    for entry in os.listdir("/proc/self/fd"):
        try:
            sockets += "socket" in os.readlink(f"/proc/self/fd/{entry}")
        except OSError:
            continue
    return {"rss_kb": resident, "threads": len(os.listdir("/proc/self/task")), "sockets": sockets}


def answer(kind: str, group: Any, count: int, root: int) -> torch.Tensor:
    """What a collective gives on this rank."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    mine = ((torch.arange(count) * 7 + rank * 3) % 11).float()
    many = torch.cat([mine + other for other in range(size)])
    out = torch.zeros(count * size)
    if kind == "async":
        tensors = [mine * factor for factor in range(1, 4)]
        for work in [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]:
            work.wait()
        return torch.cat(tensors)
    if kind == "all_reduce":
        dist.all_reduce(mine, group=group)
    elif kind == "broadcast":
        dist.broadcast(mine, group_src=root % size, group=group)
    elif kind == "all_gather":
        dist.all_gather(list(out.view(size, count)), mine, group=group)
        return out
    elif kind == "reduce_scatter":
        dist.reduce_scatter(mine, list(many.view(size, count)), group=group)
    elif kind == "all_to_all":
        dist.all_to_all_single(out, many, group=group)
        return out
    elif kind == "gather":
        here = rank == root % size
        dist.gather(mine, list(out.view(size, count)) if here else None, group_dst=root % size, group=group)
        return out
    else:
        dist.barrier(group)
    return mine


def collectives(minutes: float) -> dict[str, Any]:
    dist.init_process_group("gloo", timeout=LIMIT)
    rank, size, draw = dist.get_rank(), dist.get_world_size(), random.Random(7)
    members = [range(size)] + [sorted(draw.sample(range(size), draw.randint(2, size))) for _ in range(GROUPS - 1)]
    pairs = [tuple(dist.new_group(m, backend=b, timeout=LIMIT) for b in ("gloo", "gradwire")) for m in members]
    stop, done, wrong, begun = time.monotonic() + 60 * minutes, 0, 0, {}
    going = torch.ones(1)
    while going.item():
        for _ in range(50):
            index, kind, count, root = (
                draw.randrange(GROUPS),
                draw.choice(KINDS),
                int(10 ** draw.uniform(0, 5.5)),
                draw.randrange(size),
            )
            if rank in members[index]:
                wrong += not torch.equal(*(answer(kind, group, count, root) for group in pairs[index]))
                done += 1
        begun = begun or (held() if done > 500 else {})
        going.fill_(float(time.monotonic() < stop))
        dist.broadcast(going, 0)
    ended = held()
    dist.destroy_process_group()
    return {"collectives": done, "wrong": wrong, "begun": begun, "ended": ended, "after_destroy": held()}


def cycles(count: int, folder: str) -> dict[str, Any]:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    first: dict[str, int] = {}
    start = time.monotonic()
    for turn in range(count):
        dist.init_process_group(
            "gradwire", init_method=f"file://{folder}/{turn}", rank=rank, world_size=size, timeout=LIMIT
        )
        tensor = torch.ones(100)
        dist.all_reduce(tensor, async_op=True).wait()
        assert (tensor == size).all()
        dist.destroy_process_group()
        first = held() if turn == 20 else first
    return {"cycles": count, "seconds": time.monotonic() - start, "after_20": first, "after_all": held()}


def main() -> None:
    torch.set_num_threads(1)
    plan = json.loads(sys.argv[1])
    report = {**collectives(plan["minutes"]), **cycles(plan["cycles"], plan["folder"])}
    if report["wrong"]:
        sys.exit(f"{report['wrong']} of {report['collectives']} answers differ from gloo's")
    if os.environ["RANK"] == "0":
        print(json.dumps(report))


if __name__ == "__main__":
    main()
