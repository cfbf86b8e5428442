"""One rank of the soak test: random collectives on random groups, each result compared with gloo's.

All ranks use the same seed, so they call the same collectives. Values are small whole numbers: every sum is
exact in every type, and the two backends must agree to the bit.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

GROUPS = 4
LIMIT = timedelta(seconds=120)
KINDS = ("all_reduce", "async", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather",
         "scatter", "p2p", "barrier")  # fmt: skip
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
)
OPS = (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX)


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


@dataclass(frozen=True)
class Draw:
    """The next collective of all ranks."""

    kind: str
    count: int
    root: int
    dtype: torch.dtype
    op: Any

    @classmethod
    def of(cls, draw: random.Random, size: int) -> Draw:
        kind, count, root = draw.choice(KINDS), int(10 ** draw.uniform(0, 5.7)), draw.randrange(size)
        return cls(kind, count, root, draw.choice(DTYPES), draw.choice(OPS))


def answer(drawn: Draw, group: Any) -> torch.Tensor:
    """The result of a collective on this rank."""
    kind, count = drawn.kind, drawn.count
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    root = drawn.root % size
    mine = ((torch.arange(count) * 7 + rank * 3) % 11).to(drawn.dtype)
    many = torch.cat([mine + other for other in range(size)])
    out = torch.zeros(count * size, dtype=drawn.dtype)
    here = rank == root
    if kind == "all_reduce":
        dist.all_reduce(mine, drawn.op, group=group)
    elif kind == "async":
        many = torch.cat([mine * factor for factor in range(1, 4)])
        works = [dist.all_reduce(part, drawn.op, group=group, async_op=True) for part in many.view(3, count)]
        for work in works:
            work.wait()
        return many
    elif kind == "reduce":
        dist.reduce(mine, group_dst=root, op=drawn.op, group=group)
        mine *= here  # the result on the other ranks is undefined
    elif kind == "broadcast":
        dist.broadcast(mine, group_src=root, group=group)
    elif kind == "scatter":
        dist.scatter(mine, list(many.view(size, count)) if here else None, group_src=root, group=group)
    elif kind == "p2p":
        sending = dist.isend(mine, group_dst=(rank + 1) % size, group=group, tag=root)
        dist.recv(out[:count], group_src=(rank - 1) % size, group=group, tag=root)
        sending.wait()
    elif kind == "all_gather":
        dist.all_gather(list(out.view(size, count)), mine, group=group)
    elif kind == "reduce_scatter":
        dist.reduce_scatter(mine, list(many.view(size, count)), group=group)
    elif kind == "all_to_all":
        dist.all_to_all_single(out, many, group=group)
    elif kind == "gather":
        dist.gather(mine, list(out.view(size, count)) if here else None, group_dst=root, group=group)
    else:
        dist.barrier(group)
    return torch.cat([mine, out])


def collectives(minutes: float) -> dict[str, Any]:
    dist.init_process_group("gloo", timeout=LIMIT)
    rank, size, draw = dist.get_rank(), dist.get_world_size(), random.Random(7)
    members = [range(size)] + [sorted(draw.sample(range(size), draw.randint(2, size))) for _ in range(GROUPS - 1)]
    pairs = [tuple(dist.new_group(m, backend=b, timeout=LIMIT) for b in ("gloo", "gradwire")) for m in members]
    start, done, wrong, kept = time.monotonic(), 0, 0, []
    going = torch.ones(1)
    while going.item():
        for _ in range(50):
            index, drawn = draw.randrange(GROUPS), Draw.of(draw, size)
            if rank in members[index]:
                wrong += not torch.equal(*(answer(drawn, group) for group in pairs[index]))
                done += 1
        minute = (time.monotonic() - start) / 60
        if minute >= len(kept) + 1:
            kept.append(held())
        going.fill_(float(minute < minutes))
        dist.broadcast(going, 0)
    dist.destroy_process_group()
    pairs.clear()
    gc.collect()
    return {"collectives": done, "wrong": wrong, "every_minute": kept, "after_destroy": held()}


def cycles(count: int) -> dict[str, Any]:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    first: dict[str, int] = {}
    start = time.monotonic()
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    shared = dist.TCPStore(host, port, size, is_master=rank == 0, timeout=LIMIT)
    for turn in range(count):
        store = dist.PrefixStore(str(turn), shared)
        dist.init_process_group("gradwire", store=store, rank=rank, world_size=size, timeout=LIMIT)
        tensor = torch.ones(100)
        dist.all_reduce(tensor, async_op=True).wait()
        assert (tensor == size).all()
        dist.destroy_process_group()
        first = held() if turn == 20 else first
    return {"cycles": count, "seconds": time.monotonic() - start, "after_20": first, "after_all": held()}


def main() -> None:
    torch.set_num_threads(1)
    plan = json.loads(sys.argv[1])
    report = collectives(plan["minutes"]) if plan["minutes"] else {}
    report |= cycles(plan["cycles"]) if plan["cycles"] else {}
    if report.get("wrong"):
        sys.exit(f"{report['wrong']} of {report['collectives']} answers differ from gloo's")
    if os.environ["RANK"] == "0":
        print(json.dumps(report))


if __name__ == "__main__":
    main()
