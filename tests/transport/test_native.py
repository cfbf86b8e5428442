"""Native wires keep a caller's memory in place while native code uses it, and release it afterwards."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from gradwire.transport.wires.native import NativeWire, memory_of

LIMIT = 20.0


class SlowLoop:
    """A loop whose thread ends when the test says so; everything else is a stub."""

    port = 1
    stopped = None

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.ended = threading.Event()

    def send(self, *_: object) -> int:
        return 1

    def receive(self, *_: object) -> int:
        return 2

    def close(self) -> None:
        self.entered.release()
        assert self.ended.wait(LIMIT)


def open_wire() -> tuple[Any, NativeWire]:
    loop: Any = SlowLoop()
    return loop, NativeWire(0, loop, 1.0)


def test_a_bytearray_cannot_move_while_a_transfer_uses_it() -> None:
    loop, wire = open_wire()
    buffer, source = bytearray(100), bytearray(100)
    wire.post(1, buffer)
    wire.send(1, source)
    for used in (buffer, source):
        with pytest.raises(BufferError):
            used.extend(bytes(1_000_000))
    loop.ended.set()
    wire.close()
    buffer.extend(bytes(1_000_000))
    source.extend(bytes(1_000_000))


def test_what_keeps_a_tensors_memory_outlives_a_change_of_its_storage() -> None:
    tensor = torch.zeros(1000)
    address, size, keeper = memory_of(tensor, writable=True)
    tensor.set_(torch.zeros(5))  # type: ignore[call-overload]
    assert isinstance(keeper, torch.UntypedStorage)
    assert tensor.data_ptr() != address
    assert (keeper.data_ptr(), keeper.nbytes()) == (address, size)


def test_no_close_returns_before_the_native_thread_has_ended() -> None:
    loop, wire = open_wire()
    buffer = bytearray(100)
    wire.post(1, buffer)
    threads = [threading.Thread(target=wire.close) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert loop.entered.acquire(timeout=LIMIT), "a close did not wait for the native thread"
    with pytest.raises(BufferError):
        buffer.extend(bytes(1_000_000))
    loop.ended.set()
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive()
    buffer.extend(bytes(1_000_000))
