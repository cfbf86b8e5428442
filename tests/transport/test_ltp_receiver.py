"""docs/ltp.md is enough: a receiver that was written from it computes the test vectors and receives from the native
sender, through lost and repeated packets."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from gradwire.transport.wires.base import Contract
from gradwire.transport.wires.ltp import Endpoint, LtpConfig
from gradwire.types import Energies
from tests.transport import ltp_crypto as crypto
from tests.transport.ltp_frames import DATA, WEIGHTED, Frame, parse_frames, write_frame
from tests.transport.ltp_receiver import Receiver, Transfer

SECRET = bytes(range(32))
FILE = Path(__file__).parents[2] / "docs" / "ltp-vectors.txt"
LINES = [line.split(" = ") for line in FILE.read_text(encoding="ascii").splitlines() if line and line[0] != "#"]
VECTORS = {name: bytes.fromhex(value) for name, value in LINES}


def test_the_vectors_of_keys_follow_from_the_document() -> None:
    keys, shared = crypto.JobKeys(VECTORS["job_secret"]), VECTORS["shared"]
    assert keys.handshake_key == VECTORS["handshake_key"]
    assert keys.job_key == VECTORS["job_key"]
    assert crypto.public_key(VECTORS["private_i"]) == VECTORS["public_i"] == VECTORS["HELLO"][60:92]
    assert crypto.public_key(VECTORS["private_r"]) == VECTORS["public_r"] == VECTORS["ACCEPT"][60:92]
    assert crypto.x25519(VECTORS["private_i"], VECTORS["public_r"]) == shared
    assert crypto.x25519(VECTORS["private_r"], VECTORS["public_i"]) == shared
    assert crypto.extract(keys.job_key, shared) == VECTORS["master"]
    core = crypto.hello_core(VECTORS["HELLO_with_cookie"])
    assert hashlib.sha256(core + VECTORS["ACCEPT"][:-16]).digest() == VECTORS["transcript_hash"]
    secrets = keys.traffic(shared, VECTORS["HELLO_with_cookie"], VECTORS["ACCEPT"])
    for side, secret in zip("ir", secrets, strict=True):
        key = crypto.PacketKey(secret)
        made = (key.secret, key.key, key.iv, key.following().secret)
        assert made == tuple(VECTORS[f"{name}_{side}"] for name in ("secret", "key", "iv", "next_secret"))


@pytest.mark.parametrize(
    ("name", "context"),
    [
        ("HELLO", b""), ("HELLO_with_cookie", b""), ("RESET", b""), ("KNOCK", b""),
        *[(name, VECTORS["HELLO"][22:54]) for name in ("RETRY", "REFUSE", "VERSIONS")],
        ("ACCEPT", crypto.hello_core(VECTORS["HELLO"])),
    ],
)  # fmt: skip
def test_the_vectors_of_tags_follow_from_the_document(name: str, context: bytes) -> None:
    packet = VECTORS[name]
    assert crypto.tag(VECTORS["handshake_key"], packet[:-16], context) == packet[-16:]


def test_the_vectors_of_sealed_packets_follow_from_the_document() -> None:
    key = crypto.PacketKey(VECTORS["secret_i"])
    sealed = [name for name in VECTORS if name.startswith("SEALED_")]
    assert len(sealed) == 17
    for number, name in enumerate(sealed):
        packet, encrypt = VECTORS[name], name != "SEALED_plain"
        frames = VECTORS.get(name.replace("SEALED_", "frame_"), VECTORS["frame_PING"])
        used = key.following() if name == "SEALED_next" else key
        assert used.seal(number, packet[:12], frames, encrypt=encrypt) == packet
        assert used.open(number, packet, encrypt=encrypt) == frames
        if name != "SEALED_PADDING":
            assert write_frame(parse_frames(frames)[0]) == frames


class Playing:
    """The receiver on a socket of its own, served by a thread. `spoil` says how often a datagram is handed on."""

    def __init__(self, spoil: Callable[[int], int]) -> None:
        self.receiver, self.spoil, self.lock = Receiver(SECRET, 1, 0), spoil, threading.Lock()
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.settimeout(0.002)
        self.ended = threading.Event()
        self.error: Exception | None = None

    def serve(self, peer: tuple[str, int]) -> None:
        count = 0
        self.socket.sendto(self.receiver.knock(), peer)
        try:
            while not self.ended.is_set():
                packets = []
                try:
                    datagram = self.socket.recv(65536)
                    count += 1
                    for _ in range(self.spoil(count)):
                        packets += self._handle(datagram)
                except TimeoutError:
                    pass
                with self.lock:
                    packets += self.receiver.poll(time.monotonic())
                for packet in packets:
                    self.socket.sendto(packet, peer)
        except Exception as error:  # the test raises it
            self.error = error

    def _handle(self, datagram: bytes) -> list[bytes]:
        with self.lock:
            return self.receiver.handle(time.monotonic(), datagram)

    def post(self, buffer: bytearray, tag: int) -> None:
        with self.lock:
            self.receiver.post(buffer, tag)


@contextmanager
def connection(
    spoil: Callable[[int], int] = lambda count: 1, *, encrypt: bool = True
) -> Iterator[tuple[Endpoint, Playing]]:
    with Endpoint(0, SECRET, LtpConfig(connect_timeout=20.0, encrypt=encrypt)) as sender:
        playing = Playing(spoil)
        thread = threading.Thread(target=playing.serve, args=(("127.0.0.1", sender.port),))
        thread.start()
        try:
            sender.connect({1: ("127.0.0.1", playing.socket.getsockname()[1])})
            yield sender, playing
        finally:
            playing.ended.set()
            thread.join()
            playing.socket.close()
        if playing.error is not None:
            raise playing.error


def grains(transfer: Transfer, frame: Frame) -> range:
    """The grains that a DATA frame carries."""
    return range(frame.fields[1], frame.fields[1] + -(-len(frame.data) // transfer.grain))


def byte_range(transfer: Transfer, first: int, count: int) -> tuple[int, int]:
    """Offset and length of a range of grains."""
    start, end = first * transfer.grain, min(transfer.size, (first + count) * transfer.grain)
    return start, end - start


def pattern(size: int) -> bytes:
    return bytes(1 + (7 * at + at // 251) % 255 for at in range(size))


@pytest.mark.parametrize("encrypt", [True, False])
def test_a_reliable_transfer_arrives_through_lost_and_repeated_packets(encrypt: bool) -> None:
    def spoil(count: int) -> int:
        return 0 if count % 5 == 0 else 2 if count % 3 == 0 else 1

    with connection(spoil, encrypt=encrypt) as (sender, playing):
        for tag, size in ((1, 10), (2, 60_000)):
            data, buffer = pattern(size), bytearray(size)
            if tag == 2:
                playing.post(buffer, tag)
            sending = sender.send(1, data, tag=tag)
            if tag == 1:
                playing.post(buffer, tag)  # after the OPEN, which waits for GRANT
            assert sending.wait(20).complete
            assert bytes(buffer) == data


@pytest.mark.parametrize("weighted", [False, True])
def test_a_tolerant_transfer_closes_with_the_same_missing_ranges_on_both_sides(weighted: bool) -> None:
    with connection() as (sender, playing):
        first = bytearray(30_000)
        playing.post(first, 1)
        assert sender.send(1, pattern(30_000), tag=1).wait(20).complete  # the sender knows RTprop now
        data, buffer = pattern(80_000), bytearray(80_000)
        lost: set[int] = set()

        def lose(frames: list[Frame]) -> bool:
            """The grains of three packets, however often they are sent."""
            transfer = playing.receiver.transfers.get(1)
            covered = {
                grain
                for frame in frames
                if frame.kind in {DATA, WEIGHTED} and transfer
                for grain in grains(transfer, frame)
            }
            if transfer and covered and len(transfer.arrived) > 20 and len(lost) < 12:
                lost.update(covered)
            return not lost.isdisjoint(covered)

        playing.receiver.lose = lose
        playing.post(buffer, 2)
        falling = np.linspace(2, 1, 80, dtype=np.float32)
        energies = Energies(0, 1000, falling) if weighted else None
        delivery = sender.send(1, data, Contract(tolerance=0.5, energies=energies), tag=2).wait(20)
        transfer = playing.receiver.transfers[1]
        if weighted:
            away = sum(falling[grain * transfer.grain // 1000] for grain in lost) * transfer.grain / 1000
            assert transfer.energy == pytest.approx(1 - away / falling.sum(), abs=0.02)
        else:
            assert transfer.energy is None
        missing = [byte_range(transfer, first, count) for first, count in transfer.missing]
        assert not delivery.complete
        assert [tuple(each) for each in delivery.missing] == missing
        assert missing
        for offset, length in missing:
            assert bytes(buffer[offset : offset + length]) == bytes(length)
            buffer[offset : offset + length] = data[offset : offset + length]
        assert bytes(buffer) == data


def test_a_wrong_secret_gets_no_answer_from_either_side() -> None:
    receiver = Receiver(SECRET, 1, 0)
    stranger = bytearray(VECTORS["HELLO"])
    stranger[-1] ^= 1
    assert receiver.handle(0.0, bytes(stranger)) == []
    answers = receiver.handle(0.0, VECTORS["HELLO"])
    assert [answer[0] & 15 for answer in answers] == [2]  # a RETRY, and no state
    assert receiver.accept == b""
