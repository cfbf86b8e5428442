"""A chain's byte stream: any tensors become chunks of bytes and back; what is near the end is sent as well."""

from __future__ import annotations

import pytest
import torch

from gradwire.transport.chain_send import ByteStream, chunk_bytes


def tensors(seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [
        torch.randn(5, 3), torch.randn(4, 6).t(), torch.zeros(0), torch.randn(()).half(), torch.randn(7).bfloat16(),
        torch.rand(9) > 0.5, torch.randint(100, (3,)), torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(6, dtype=torch.complex64), torch.randn(10)[::2],
    ]  # fmt: skip


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_bytes_written_chunk_by_chunk_are_the_tensors_that_were_read(size: int) -> None:
    first, second = tensors(0), tensors(1)
    source, target = ByteStream(first), ByteStream(second)
    assert source.nbytes == target.nbytes == sum(one.numel() * one.element_size() for one in first)
    for start in range(0, source.nbytes, size):
        chunk = torch.empty(min(size, source.nbytes - start), dtype=torch.uint8)
        source.read(start, chunk)
        target.write(start, chunk)
    target.finish()
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()


def test_chunks_are_a_small_share_of_a_large_stream_and_not_tiny() -> None:
    assert chunk_bytes(100) == chunk_bytes(3_000_000) == 32 * 1024
    assert chunk_bytes(100_000_000) == pytest.approx(100_000_000 / 256, rel=1e-3)
    assert chunk_bytes(50_000_000_000) == 4 * 1024 * 1024
