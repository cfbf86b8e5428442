"""Kernel interface: the native module and the torch reference module both implement it; mypy checks that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor

# Elements that share one scale.
INT8_BLOCK = 256
INT4_BLOCK = 64
INT2_BLOCK = 64


@dataclass(frozen=True, slots=True)
class Selection:
    """How many (index, value) pairs a selection wrote, and how many elements were not finite."""

    count: int
    nonfinite: int


@dataclass(frozen=True, slots=True)
class SparseForm:
    """What a sparse frame holds, and how it is written, for kernels that write whole frames.

    `selecting` names `select_largest`, `select_exact`, or `select` with a sampled threshold. `kinds` are the first two
    words of the header, `header` its bytes.
    """

    wanted: int
    capacity: int
    selecting: Literal["largest", "exact", "sampled"]
    values: str
    kinds: tuple[int, int]
    header: int


class Kernels(Protocol):
    """Sizes of arguments are already checked; the functions of the same names in the package document each."""

    def encode_half(self, g: Tensor, r: Tensor | None, out: Tensor, threads: int) -> int: ...

    def decode_half(self, src: Tensor, out: Tensor, weight: float, add: bool, threads: int) -> None: ...

    def round_to_bfloat(self, values: Tensor, out: Tensor, seed: int) -> None: ...

    def encode_int8(
        self, g: Tensor, r: Tensor | None, q: Tensor, scales: Tensor, seed: int | None, threads: int
    ) -> int: ...

    def encode_int4(
        self, g: Tensor, r: Tensor | None, q: Tensor, scales: Tensor, seed: int | None, threads: int
    ) -> int: ...

    def encode_int2(
        self, g: Tensor, r: Tensor | None, q: Tensor, scales: Tensor, seed: int | None, threads: int
    ) -> int: ...

    def decode_int8(self, q: Tensor, scales: Tensor, out: Tensor, weight: float, add: bool, threads: int) -> None: ...

    def decode_int4(self, q: Tensor, scales: Tensor, out: Tensor, weight: float, add: bool, threads: int) -> None: ...

    def decode_int2(self, q: Tensor, scales: Tensor, out: Tensor, weight: float, add: bool, threads: int) -> None: ...

    def threshold(self, g: Tensor, r: Tensor | None, k: int) -> float: ...

    def select(
        self, g: Tensor, r: Tensor | None, threshold: float, indices: Tensor, values: Tensor, threads: int
    ) -> Selection: ...

    def select_exact(
        self, g: Tensor, r: Tensor | None, k: int, indices: Tensor, values: Tensor, threads: int
    ) -> Selection: ...

    def select_largest(
        self, g: Tensor, r: Tensor | None, k: int, indices: Tensor, values: Tensor, threads: int
    ) -> Selection: ...

    def gather(self, g: Tensor, r: Tensor | None, indices: Tensor, values: Tensor, count: int) -> int: ...

    def accumulate(self, g: Tensor, r: Tensor, threads: int) -> int: ...

    def scatter_add(self, indices: Tensor, values: Tensor, count: int, out: Tensor, weight: float) -> bool: ...
