"""
gradwire's native core: compression kernels, the wires (LTP, TCP, shared memory), sums on one host, LTP in virtual time.
"""

from collections.abc import Sequence
import enum


def isa() -> str:
    """The instruction set the kernels run on."""

def set_isa(name: str) -> str:
    """
    For tests and benchmarks: run on this set, or the best below it that the machine has; says which.
    """

def encode_half(bf16: bool, g: int, r: int, out: int, n: int, threads: int) -> int: ...

def decode_half(bf16: bool, src: int, out: int, n: int, weight: float, add: bool, threads: int) -> None: ...

def round_to_bfloat(values: int, out: int, n: int, seed: int) -> None: ...

def encode_int8(g: int, r: int, q: int, scales: int, n: int, seed: int | None, threads: int) -> int: ...

def encode_int4(g: int, r: int, q: int, scales: int, n: int, seed: int | None, threads: int) -> int: ...

def encode_int2(g: int, r: int, q: int, scales: int, n: int, seed: int | None, threads: int) -> int: ...

def decode_int8(q: int, scales: int, out: int, n: int, weight: float, add: bool, threads: int) -> None: ...

def decode_int4(q: int, scales: int, out: int, n: int, weight: float, add: bool, threads: int) -> None: ...

def decode_int2(q: int, scales: int, out: int, n: int, weight: float, add: bool, threads: int) -> None: ...

class Selected:
    """How many pairs were written, and how many elements were not finite."""

    @property
    def count(self) -> int: ...

    @property
    def nonfinite(self) -> int: ...

def threshold(g: int, r: int, n: int, k: int) -> float: ...

def select(g: int, r: int, n: int, threshold: float, indices: int, values: int, capacity: int, threads: int) -> Selected: ...

def select_exact(g: int, r: int, n: int, k: int, indices: int, values: int, capacity: int, threads: int) -> Selected: ...

def select_largest(g: int, r: int, n: int, k: int, indices: int, values: int, capacity: int, threads: int) -> Selected: ...

def gather(g: int, r: int, n: int, indices: int, values: int, count: int) -> int:
    """-1: an index is out of range."""

def accumulate(g: int, r: int, n: int, threads: int) -> int: ...

def add(g: int, r: int, n: int, threads: int) -> None:
    """Plain r += g, the floor benchmarks compare with."""

def scatter_add(indices: int, values: int, count: int, out: int, n: int, weight: float) -> bool:
    """False: an index is out of range."""

def orthonormalise(p: int, rows: int, rank: int) -> None: ...

def multiply_factors(p: int, q: int, out: int, rows: int, columns: int, rank: int) -> None: ...

def packed_bound(count: int, numel: int) -> int: ...

def pack_indices(indices: int, count: int, numel: int, out: int) -> int:
    """-1: the indices do not strictly increase below numel."""

def unpack_indices(data: int, size: int, count: int, numel: int, indices: int) -> bool:
    """False: the bytes are not a packed set."""

def crc32c(data: int, n: int) -> int: ...

class LtpConfig:
    """Checked settings of an endpoint; times in seconds."""

    def __init__(self, rank: int, epoch: int, secret: bytes) -> None: ...

    @property
    def host(self) -> str: ...

    @host.setter
    def host(self, arg: str, /) -> None: ...

    @property
    def port(self) -> int: ...

    @port.setter
    def port(self, arg: int, /) -> None: ...

    @property
    def socket_buffer(self) -> int: ...

    @socket_buffer.setter
    def socket_buffer(self, arg: int, /) -> None: ...

    def set_protocol(self, encrypt: bool, cubic: bool, credit: int, largest_datagram: int) -> None: ...

    def set_times(self, keepalive: float, dead_after: float, connect_timeout: float, deadline_slack: float, first_deadline: float) -> None: ...

class LtpResult:
    """What became of one transfer."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def arrived(self) -> int: ...

    @property
    def elapsed(self) -> float: ...

    @property
    def reason(self) -> str: ...

    @property
    def failure(self) -> str: ...

    @property
    def missing(self) -> list[tuple[int, int]]: ...

class LtpLoop:
    """
    The event loop thread with its socket. Buffers given by address stay alive until waited for.
    """

    def __init__(self, config: LtpConfig) -> None: ...

    @property
    def port(self) -> int: ...

    def connect(self, rank: int, host: str, port: int) -> None: ...

    def wait_connected(self, rank: int, timeout: float) -> str: ...

    def send(self, rank: int, data: int, size: int, tag: int, unit: tuple[int, int], tolerance: int, critical: Sequence[tuple[int, int]], seed: int, importance: tuple[int, int, int, int]) -> int: ...

    def receive(self, rank: int, data: int, size: int, tag: int, threshold: float, deadline: float) -> int: ...

    def wait(self, token: int, timeout: float) -> LtpResult | None: ...

    def wait_any(self, tokens: Sequence[int], timeout: float) -> list[int]: ...

    def nudge(self) -> None: ...

    def cancel(self, rank: int, token: int) -> LtpResult | None: ...

    def detach(self, rank: int, token: int) -> None: ...

    def link_stats(self) -> dict[int, dict[str, float]]: ...

    def endpoint_stats(self) -> dict[str, int]: ...

    @property
    def stopped(self) -> str | None: ...

    def close(self) -> None: ...

class StreamConfig:
    """Checked settings of the streams' loop; times in seconds."""

    def __init__(self, rank: int, epoch: int, secret: bytes) -> None: ...

    @property
    def local(self) -> bool: ...

    @local.setter
    def local(self, arg: bool, /) -> None: ...

    @property
    def host(self) -> str: ...

    @host.setter
    def host(self, arg: str, /) -> None: ...

    @property
    def port(self) -> int: ...

    @port.setter
    def port(self, arg: int, /) -> None: ...

    @property
    def encrypt(self) -> bool: ...

    @encrypt.setter
    def encrypt(self, arg: bool, /) -> None: ...

    @property
    def credit(self) -> int: ...

    @credit.setter
    def credit(self, arg: int, /) -> None: ...

    @property
    def ring(self) -> int: ...

    @ring.setter
    def ring(self, arg: int, /) -> None: ...

    def set_times(self, keepalive: float, dead_after: float, connect_timeout: float, spin: float) -> None: ...

class StreamLoop:
    """
    All streams of a process. Buffers given by address stay alive until waited for.
    """

    def __init__(self, config: StreamConfig) -> None: ...

    @property
    def port(self) -> int: ...

    def connect(self, rank: int, host: str, port: int) -> None: ...

    def wait_connected(self, rank: int, timeout: float) -> str: ...

    def send(self, rank: int, data: int, size: int, tag: int, unit: tuple[int, int], tolerance: int, critical: Sequence[tuple[int, int]], seed: int, importance: tuple[int, int, int, int]) -> int: ...

    def receive(self, rank: int, data: int, size: int, tag: int, threshold: float, deadline: float) -> int: ...

    def wait_any(self, tokens: Sequence[int], timeout: float) -> list[int]: ...

    def nudge(self) -> None: ...

    def wait(self, token: int, timeout: float) -> LtpResult | None: ...

    def cancel(self, rank: int, token: int) -> LtpResult | None: ...

    def detach(self, rank: int, token: int) -> None: ...

    def link_stats(self) -> dict[int, dict[str, float]]: ...

    def endpoint_stats(self) -> dict[str, int]: ...

    @property
    def stopped(self) -> str | None: ...

    def close(self) -> None: ...

class PacketLink:
    """One direction of a link; bytes per second, seconds, bytes."""

    def __init__(self) -> None: ...

    @property
    def rate(self) -> float: ...

    @rate.setter
    def rate(self, arg: float, /) -> None: ...

    @property
    def delay(self) -> float: ...

    @delay.setter
    def delay(self, arg: float, /) -> None: ...

    @property
    def jitter(self) -> float: ...

    @jitter.setter
    def jitter(self, arg: float, /) -> None: ...

    @property
    def loss(self) -> float: ...

    @loss.setter
    def loss(self, arg: float, /) -> None: ...

    @property
    def burst_enter(self) -> float: ...

    @burst_enter.setter
    def burst_enter(self, arg: float, /) -> None: ...

    @property
    def burst_leave(self) -> float: ...

    @burst_leave.setter
    def burst_leave(self, arg: float, /) -> None: ...

    @property
    def burst_loss(self) -> float: ...

    @burst_loss.setter
    def burst_loss(self, arg: float, /) -> None: ...

    @property
    def reorder(self) -> float: ...

    @reorder.setter
    def reorder(self, arg: float, /) -> None: ...

    @property
    def reorder_by(self) -> float: ...

    @reorder_by.setter
    def reorder_by(self, arg: float, /) -> None: ...

    @property
    def duplicate(self) -> float: ...

    @duplicate.setter
    def duplicate(self, arg: float, /) -> None: ...

    @property
    def queue(self) -> float: ...

    @queue.setter
    def queue(self, arg: float, /) -> None: ...

    @property
    def mtu(self) -> int: ...

    @mtu.setter
    def mtu(self, arg: int, /) -> None: ...

class PacketWorld:
    """LTP on the lab's link model, packet by packet, in virtual time."""

    def __init__(self, hosts: int, seed: int) -> None: ...

    def add_link(self, values: PacketLink, seed: int, overhead: int) -> None: ...

    def set_path(self, source: int, target: int, links: Sequence[int]) -> None: ...

    def connect(self, one: int, other: int) -> None: ...

    def expect(self, host: int, peer: int, token: int, size: int, deadline: float = 0.0) -> None: ...

    def send(self, host: int, peer: int, token: int, size: int) -> None: ...

    def send_tolerant(self, host: int, peer: int, token: int, size: int, tolerance: float, span: int, energies: Sequence[float]) -> None:
        """Without energies the order is permuted."""

    def take_missing(self, host: int, token: int) -> list[tuple[int, int]]:
        """Byte ranges that a tolerant transfer has lost."""

    def run(self, limit: float) -> list[tuple[float, int, int, bool]]:
        """
        Until something lands: (seconds, host, token, whether it is the sender's news).
        """

    @property
    def now(self) -> float: ...

    def stats(self, host: int, peer: int) -> dict[str, float]: ...

class ShmStatus(enum.Enum):
    waiting = 0

    done = 1

    differs = 2

    fold = 3

class ShmKind(enum.Enum):
    caller = 0

    float32 = 1

    float64 = 2

    int8 = 3

    int16 = 4

    int32 = 5

    int64 = 6

class ShmFold:
    """
    What the caller adds up: `size` bytes of the data, and where they lie in the slots.
    """

    @property
    def phase(self) -> int: ...

    @property
    def offset(self) -> int: ...

    @property
    def place(self) -> int: ...

    @property
    def size(self) -> int: ...

class ShmAllreduce:
    """
    Sums between the ranks of one host, through memory that all of them see.
    """

    def __init__(self, file: int, ranks: int, slot: int, rank: int, spin: float) -> None: ...

    @staticmethod
    def make(ranks: int, slot: int) -> int: ...

    def announce(self, number: int, sums: int, header: bytes) -> None: ...

    def begin(self, number: int, header: bytes, data: int, size: int, item: int, kind: ShmKind, sharded: bool) -> None: ...

    def step(self, timeout: float) -> ShmStatus: ...

    @property
    def folding(self) -> ShmFold: ...

    def folded(self) -> None: ...

    def slot(self, phase: int, rank: int) -> int: ...

    @property
    def missing(self) -> list[int]: ...

    @property
    def odd_rank(self) -> int: ...

    @property
    def odd_header(self) -> bytes: ...

class EphemeralKey:
    """An X25519 key pair, to be used for one exchange."""

    def __init__(self, seed: bytes) -> None: ...

    @property
    def public_key(self) -> bytes: ...

    def agree(self, other: bytes) -> bytes:
        """
        The secret shared with the holder of the other private key; ValueError for a weak public key.
        """
