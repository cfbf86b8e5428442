"""Compiles every kernel for GPUs that are not here, and predicts its time from the memory that it moves.

    python benchmarks/gpu_kernels.py              compile for all targets and print the table
    python benchmarks/gpu_kernels.py --write      put it into docs/results/gpu-kernels.md and .json

Registers, spilled registers and shared memory are those of the machine code (ptxas for CUDA, the code object's metadata
for ROCm). From them follows how many warps a processor holds. A prediction is 0.9 of the memory's bandwidth, or less
where these warps cannot keep enough bytes in flight (Little's law), or have more instructions than are issued in that
time. Triton keeps what it compiled, so a second run takes seconds.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gradwire.compress.kernels.triton import compact, decode, half, indices, largest, quantise, sparse
from gradwire.compress.kernels.triton.launch import ELEMENTS, OPTIONS
from gradwire.compress.kernels.triton.launch_sparse import PAIRS

RESULTS: Final = Path(__file__).parents[1] / "docs" / "results"
WARPS: Final = 4
RANKS: Final = 8
UNROLLED: Final = 4  # ranks whose frames decode.py loads at once
TARGETS: Final = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
TYPES: Final = {
    "g": "*fp32", "r": "*fp32", "q": "*u8", "scales": "*fp32", "nonfinite": "*i32", "n": "i32", "seed": "i32",
    "out": "*fp32", "frames": "*u8", "stride": "i32", "count": "i32", "weight": "fp32", "histogram": "*i32",
    "state": "*i32", "strata": "i32", "step": "i32", "each": "i32", "k": "i32", "above": "*i32", "equal": "*i32",
    "blocks": "i32", "capacity": "i32", "indices": "*i32", "values": "*fp32", "lengths": "*i64", "kind": "i32",
    "values_kind": "i32", "body": "*u8", "kept": "i32",
}  # fmt: skip
FEEDBACK: Final = {"FEEDBACK": True}


@dataclass(frozen=True, slots=True)
class Form:
    """A kernel with its constants. `moved`: bytes of memory per element, `loaded`: of them, those that an element's
    thread has in flight at once. `rounds`: how often its loop runs for the same elements. None for kernels whose work
    does not grow with the gradient, or that read a sample."""

    kernel: Any
    constants: dict[str, Any]
    moved: float | None = None
    loaded: float = 8.0
    rounds: float = 1.0
    types: dict[str, str] | None = None


def _blocks(bits: int) -> dict[str, int]:
    block = {8: 256, 4: 64, 2: 64}[bits]
    return {"BITS": bits, "BLOCK": block, "ROWS": ELEMENTS // block}


# Residuals in bfloat16 are passed as their bits; seeds of their roundings have more than 32 bits.
BFLOAT: Final = {"r": "*i16", "kept": "i64"}


def _quantise(bits: int, bfloat: bool = False) -> Form:
    moved = (8 if bfloat else 12) + bits / 8 + 4 / _blocks(bits)["BLOCK"]
    constants = {**FEEDBACK, "STOCHASTIC": True, **_blocks(bits)}
    return Form(quantise.quantise, constants, moved, 6.0 if bfloat else 8.0, types=BFLOAT if bfloat else None)


def _add(bits: int) -> Form:
    read = bits / 8 + 4 / _blocks(bits)["BLOCK"]
    return Form(
        decode.add_quantised, {"ADD": False, **_blocks(bits)}, 4 + RANKS * read, UNROLLED * read, RANKS / UNROLLED
    )


HALF: Final = {"BFLOAT": True, "BLOCK": ELEMENTS}
COUNT: Final = {**FEEDBACK, "SAMPLED": False, "BLOCK": ELEMENTS}
FORMS: Final = {
    **{f"quantise int{bits}": _quantise(bits) for bits in (8, 4, 2)},
    **{f"quantise int{bits}, residual bf16": _quantise(bits, bfloat=True) for bits in (8, 4, 2)},
    "halve bf16": Form(half.halve, {**FEEDBACK, **HALF}, 14, types={"out": "*i16"}),
    "halve bf16, residual bf16": Form(half.halve, {**FEEDBACK, **HALF}, 10, 6.0, types={"out": "*i16", **BFLOAT}),
    **{f"decode and add int{bits}, {RANKS} ranks": _add(bits) for bits in (8, 4, 2)},
    f"decode and add bf16, {RANKS} ranks": Form(
        decode.add_halves, {"ADD": False, **HALF}, 4 + 2 * RANKS, 2 * UNROLLED, RANKS / UNROLLED
    ),
    "count keys, first bits": Form(largest.count_keys, {**COUNT, "SHIFT": 20, "FIRST": True}, 8),
    "count keys, last bits": Form(largest.count_keys, {**COUNT, "SHIFT": 0, "FIRST": False}, 8),
    "count keys of a sample": Form(largest.count_keys, {**COUNT, "SAMPLED": True, "SHIFT": 9, "FIRST": False}),
    "narrow": Form(largest.narrow, {"SHIFT": 0, "FIRST": False, "FINITE": False, "SKIP_ZEROS": True}),
    "count selected": Form(compact.count_selected, {**FEEDBACK, "BLOCK": ELEMENTS}, 8),
    "place blocks": Form(compact.place_blocks, {}),
    "move selected": Form(compact.move_selected, {**FEEDBACK, "BLOCK": ELEMENTS}, 12),
    "move selected, residual bf16": Form(compact.move_selected, {**FEEDBACK, "BLOCK": ELEMENTS}, 8, 6.0, types=BFLOAT),
    "measure indices": Form(indices.measure, {"BLOCK": PAIRS}),
    "lay out": Form(indices.lay_out, {"HEADER": 32, "BITS": 8, "BLOCK": 256}, types={"frame": "*i32"}),
    "write indices": Form(indices.write, {"HEADER": 32, "BLOCK": PAIRS}, types={"frame": "*i32"}),
    "write values int8": Form(sparse.write_quantised, {**FEEDBACK, "STOCHASTIC": True, **_blocks(8)}),
    "write values int8, residual bf16": Form(
        sparse.write_quantised, {**FEEDBACK, "STOCHASTIC": True, **_blocks(8)}, types=BFLOAT
    ),
    "write values fp16": Form(sparse.write_floats, {**FEEDBACK, "KIND": 1, "BLOCK": PAIRS}),
    "add values int8": Form(sparse.add_sparse_quantised, _blocks(8)),
    "add values fp16": Form(sparse.add_sparse_floats, {"KIND": 1, "BLOCK": PAIRS}),
}


@dataclass(frozen=True, slots=True)
class Card:
    """Bandwidth in bytes per second, latency in seconds, processors, their clock, bytes of shared memory of one.
    From the makers' data sheets; latencies are what published pointer chases measured."""

    name: str
    bandwidth: float
    latency: float
    processors: int
    clock: float
    shared: int
    bus: float  # one direction of the bus, as benchmarks/gpu.py assumes


CARDS: Final = {
    "sm_80": Card("A100 80 GB", 2.04e12, 470e-9, 108, 1.41e9, 164 << 10, 24e9),
    "sm_90": Card("H100 SXM", 3.35e12, 560e-9, 132, 1.755e9, 228 << 10, 48e9),
}


@dataclass(frozen=True, slots=True)
class Compiled:
    registers: int
    spills: int
    shared: int
    # What would make results differ from the CPU's: contracted products, flushed small numbers, inexact divisions.
    inexact: int
    # Instructions in the machine code outside of loops, and in the longest loop; 0 where they were not counted.
    instructions: int = 0
    loop: int = 0


def compile_kernel(form: Form, target: GPUTarget) -> Compiled:
    names = form.kernel.arg_names
    types = {**TYPES, "frame": "*u8", **(form.types or {})}
    signature = {name: "constexpr" if name in form.constants else types[name] for name in names}
    # As at run time: memory of torch is aligned, and so are most sizes; seeds and ranks are of any value.
    aligned = {"n", "stride"} | {name for name in names if signature[name].startswith("*")}
    attributes = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name in aligned}
    constants = {(names.index(name),): value for name, value in form.constants.items()}
    source = ASTSource(form.kernel, signature=signature, constexprs=constants, attrs=attributes)
    made = triton.compile(source, target=target, options={**OPTIONS, "num_warps": WARPS})
    return _rocm(made) if target.backend == "hip" else _cuda(made)


def _cuda(made: Any) -> Compiled:
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        text = _output(tools / "cuobjdump", "--dump-resource-usage", file.name)
        code = _output(tools / "nvdisasm", "-c", file.name)
    usage = {name: int(value) for name, value in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", text)}
    instructions, loop = _instructions(code)
    ptx = made.asm["ptx"]
    inexact = len(re.findall(r"\bfma\.rn\.f32|\.ftz\b|div\.full|\.approx", ptx))
    return Compiled(
        usage["REG"], usage["STACK"] + usage["LOCAL"], int(made.metadata.shared), inexact, instructions, loop
    )


def _instructions(code: str) -> tuple[int, int]:
    """Outside of loops, and in the longest loop. A loop is what lies between a label and a later branch to it."""
    places: dict[str, int] = {}
    count, loops = 0, [(0, 0)]
    for line in code.splitlines():
        if found := re.match(r"(\.L_x_\d+):", line):
            places[found[1]] = count
        elif re.search(r"/\*[0-9a-f]{4,}\*/", line) and "NOP" not in line:
            count += 1
            target = re.search(r"BRA[^`]*`\((\.L_x_\d+)\)", line)
            if target and target[1] in places:
                loops.append((places[target[1]], count))
    lengths = [end - begin for begin, end in loops]
    return count - sum(lengths), max(lengths)


def _output(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _rocm(made: Any) -> Compiled:
    text = made.asm["amdgcn"]
    found = {name: int(value) for name, value in re.findall(r"\.(\w+_count|private_segment_fixed_size):\s+(\d+)", text)}
    spills = found["vgpr_spill_count"] + found["sgpr_spill_count"]
    flushing = len(re.findall(r"amdhsa_float_denorm_mode_32 [012]\b", text))
    return Compiled(found["vgpr_count"], spills, int(made.metadata.shared), flushing)


def bandwidth_share(form: Form, compiled: Compiled, card: Card) -> float:
    """The predicted share of the data sheet's bandwidth, of which copies reach about 0.9.

    1. The warps that fit: each thread loads ELEMENTS / threads elements at once and waits a latency for them.
    2. A processor issues an instruction of four warps per clock; the longest loop runs `rounds` times.
    """
    threads = 32 * WARPS
    per_warp = -(-compiled.registers // 8) * 8 * 32
    by_registers = (1 << 16) // (per_warp * WARPS)
    by_shared = card.shared // (compiled.shared + 1024)
    blocks = min(by_registers, by_shared, 2048 // threads, 32)
    in_flight = blocks * card.processors * ELEMENTS * form.loaded
    loading = in_flight / (card.bandwidth * card.latency)  # 1
    per_element = (compiled.instructions + compiled.loop * form.rounds) * threads / ELEMENTS  # 2
    assert form.moved is not None
    issuing = card.processors * card.clock * 4 * 32 / per_element * form.moved / card.bandwidth
    return min(0.9, loading, issuing)


def measured() -> dict[str, dict[str, dict[str, int]]]:
    """By kernel and target."""
    return {
        name: {target: asdict(compile_kernel(form, TARGETS[target])) for target in TARGETS}
        for name, form in FORMS.items()
    }


def shares(found: dict[str, dict[str, dict[str, int]]]) -> dict[str, dict[str, float]]:
    """The predicted share of the roofline, by kernel and card, of kernels that pass over the gradient."""
    return {
        name: {arch: bandwidth_share(form, Compiled(**found[name][arch]), card) for arch, card in CARDS.items()}
        for name, form in FORMS.items()
        if form.moved is not None
    }


def page(found: dict[str, dict[str, dict[str, int]]]) -> str:
    lines = [
        "# Kernels for GPUs, compiled",
        "",
        "Written by `python benchmarks/gpu_kernels.py --write`. Nothing here ran on a GPU: registers, spills and",
        "shared memory are those of the machine code that",
        f"triton {triton.__version__} makes with {WARPS} warps a block.",
        "",
        "| kernel | " + " | ".join(f"{target}: registers, spills, shared bytes" for target in TARGETS) + " |",
        "|---" * (1 + len(TARGETS)) + "|",
    ]
    for name, targets in found.items():
        cells = (f"{one['registers']}, {one['spills']}, {one['shared']}" for one in targets.values())
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_roofline(found), *_levels(found)]) + "\n"


def _roofline(found: dict[str, dict[str, dict[str, int]]]) -> list[str]:
    lines = [
        "## Predicted times",
        "",
        "Bytes of memory that a kernel moves per element, against the card's bandwidth. The share is at most 0.9;",
        "less where the warps that fit cannot keep enough bytes in flight, or have more instructions than are issued",
        "in that time (the model is in the program). Milliseconds for 100 M elements.",
        "",
        "| kernel | bytes per element | "
        + " | ".join(f"{card.name}: share of the roofline | ms" for card in CARDS.values())
        + " |",
        "|---" * (2 + 2 * len(CARDS)) + "|",
    ]
    for name, by_card in shares(found).items():
        moved = FORMS[name].moved
        assert moved is not None
        cells = (f"{share:.2f} | {_ms(moved, CARDS[arch], share):.2f}" for arch, share in by_card.items())
        lines.append(f"| {name} | {moved:.2f} | {' | '.join(cells)} |")
    return lines


def _ms(moved: float, card: Card, share: float) -> float:
    return 1e3 * 1e8 * moved / (card.bandwidth * share)


# The kernels that pass over the gradient when it is encoded at a level, and bytes of a frame per element.
ENCODING: Final = {
    "int8": (("quantise int8",), 1.016),
    "int4": (("quantise int4",), 0.5625),
    "topk:0.01+int8": (
        (
            "count keys, first bits",
            "count keys, first bits",
            "count keys, last bits",
            "count selected",
            "move selected",
        ),
        0.021,
    ),
}


def _levels(found: dict[str, dict[str, dict[str, int]]]) -> list[str]:
    lines = [
        "",
        "## Encoding 100 M elements beside the bus and the network",
        "",
        "Milliseconds: kernels that encode, the frame's copy to the host, and the frame at 1, 10 and 25 Gbit/s (each",
        "element once, as a rank of a sharded exchange sends them in each of its two phases).",
        "",
        "| level | " + " | ".join(f"{card.name}: kernels | bus" for card in CARDS.values()) + " | 1 Gbit/s | 10 | 25 |",
        "|---" * (4 + 2 * len(CARDS)) + "|",
    ]
    share = shares(found)
    for level, (names, nbytes) in ENCODING.items():
        cells = []
        for arch, card in CARDS.items():
            spent = sum(_ms(FORMS[name].moved or 0.0, card, share[name][arch]) for name in names)
            cells.append(f"{spent:.1f} | {1e11 * nbytes / card.bus:.1f}")
        network = " | ".join(f"{8e11 * nbytes / (gbit * 1e9):.0f}" for gbit in (1, 10, 25))
        lines.append(f"| {level} | {' | '.join(cells)} | {network} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="put the results into docs/results")
    wanted = parser.parse_args()
    found = measured()
    if wanted.write:
        (RESULTS / "gpu-kernels.json").write_text(json.dumps(found, indent=1) + "\n")
        (RESULTS / "gpu-kernels.md").write_text(page(found))
    print(page(found))


if __name__ == "__main__":
    main()
