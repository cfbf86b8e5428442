"""gradwire's native core: compression kernels."""



def isa() -> str:
    """The instruction set the kernels run on."""

def set_isa(name: str) -> str:
    """
    For tests and benchmarks: run on this set, or the best below it that the machine has; says which.
    """

def encode_half(bf16: bool, g: int, r: int, out: int, n: int, threads: int) -> int: ...

def decode_half(bf16: bool, src: int, out: int, n: int, weight: float, add: bool, threads: int) -> None: ...

def encode_int8(g: int, r: int, q: int, scales: int, n: int, seed: int | None, threads: int) -> int: ...

def encode_int4(g: int, r: int, q: int, scales: int, n: int, seed: int | None, threads: int) -> int: ...

def decode_int8(q: int, scales: int, out: int, n: int, weight: float, add: bool, threads: int) -> None: ...

def decode_int4(q: int, scales: int, out: int, n: int, weight: float, add: bool, threads: int) -> None: ...

class Selected:
    """How many pairs were written, and how many elements were not finite."""

    @property
    def count(self) -> int: ...

    @property
    def nonfinite(self) -> int: ...

def threshold(g: int, r: int, n: int, k: int) -> float: ...

def select(g: int, r: int, n: int, threshold: float, indices: int, values: int, capacity: int, threads: int) -> Selected: ...

def select_exact(g: int, r: int, n: int, k: int, indices: int, values: int, capacity: int, threads: int) -> Selected: ...

def gather(g: int, r: int, n: int, indices: int, values: int, count: int) -> int:
    """-1: an index is out of range."""

def accumulate(g: int, r: int, n: int, threads: int) -> int: ...

def add(g: int, r: int, n: int, threads: int) -> None:
    """Plain r += g, the floor benchmarks compare with."""

def scatter_add(indices: int, values: int, count: int, out: int, n: int, weight: float) -> bool:
    """False: an index is out of range."""

def packed_bound(count: int, numel: int) -> int: ...

def pack_indices(indices: int, count: int, numel: int, out: int) -> int:
    """-1: the indices do not strictly increase below numel."""

def unpack_indices(data: int, size: int, count: int, numel: int, indices: int) -> bool:
    """False: the bytes are not a packed set."""

def crc32c(data: int, n: int) -> int: ...
