"""Packed indices come back, stay near their entropy and below their bound, and bad bytes are refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gradwire import _native
from gradwire.compress import kernels
from gradwire.errors import IntegrityError


def pack(indices: list[int] | Tensor, numel: int) -> Tensor:
    tensor = torch.as_tensor(indices, dtype=torch.int32)
    out = torch.empty(kernels.packed_bound(tensor.numel(), numel), dtype=torch.uint8)
    return out[: kernels.pack_indices(tensor, tensor.numel(), numel, out)].clone()


def unpack(data: Tensor, count: int, numel: int) -> Tensor:
    found = torch.empty(count, dtype=torch.int32)
    kernels.unpack_indices(data, count, numel, found)
    return found


def plain_rice(indices: list[int], numel: int) -> bytes:
    """The stream as defined, bit by bit."""
    if not 0 < len(indices) < numel:
        return b""
    b = next(b for b in range(32) if b == 31 or (len(indices) << b) * 1000 >= numel * 481)
    bits: list[int] = []
    for previous, index in zip([-1, *indices], indices, strict=False):
        gap = index - previous - 1
        bits += [0] * (gap >> b) + [1] + [gap >> j & 1 for j in range(b)]
    if -(-len(bits) // 8) > -(-numel // 8):
        return b"\1" + sum(1 << i for i in indices).to_bytes(-(-numel // 8), "little")
    return b"\0" + sum(bit << i for i, bit in enumerate(bits)).to_bytes(-(-len(bits) // 8), "little")


@st.composite
def index_sets(draw: st.DrawFn) -> tuple[list[int], int]:
    numel = draw(st.integers(1, 3000) | st.sampled_from([2**31 - 1, 10**6]))
    picked = draw(st.sets(st.integers(0, numel - 1), max_size=min(numel, 200)))
    kind = draw(st.sampled_from(["as drawn", "first", "last", "all"]))
    if kind == "all" and numel <= 3000:
        return list(range(numel)), numel
    if kind == "first":
        return list(range(len(picked))), numel
    if kind == "last":
        return list(range(numel - len(picked), numel)), numel
    return sorted(picked), numel


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(index_sets())
def test_packed_indices_follow_their_definition_and_come_back(case: tuple[list[int], int]) -> None:
    indices, numel = case
    data = pack(indices, numel)
    assert bytes(data.tolist()) == plain_rice(indices, numel)
    assert unpack(data, len(indices), numel).tolist() == indices


@pytest.mark.parametrize(("ratio", "most"), [(0.01, 8.15), (0.001, 11.55), (0.1, 4.85), (0.3, 3.2)])
def test_random_indices_pack_close_to_their_entropy(ratio: float, most: float) -> None:
    numel = 4_000_000
    generator = torch.Generator().manual_seed(1)
    indices = (torch.rand(numel, generator=generator) < ratio).nonzero().flatten()
    data = pack(indices, numel)
    entropy = -(math.log2(ratio) + (1 / ratio - 1) * math.log2(1 - ratio))
    assert entropy <= data.numel() * 8 / indices.numel() <= most
    assert torch.equal(unpack(data, indices.numel(), numel).long(), indices)


@pytest.mark.slow
def test_clustered_indices_stay_below_the_bound() -> None:
    for numel, count in ((1000, 10), (10**6, 1000), (10**6, 999_999), (100, 50)):
        for indices in (range(count), range(numel - count, numel), range(0, count * (numel // count), numel // count)):
            data = pack(list(indices), numel)
            assert data.numel() <= kernels.packed_bound(count, numel)
            assert unpack(data, count, numel).tolist() == list(indices)


@pytest.mark.parametrize("indices", [[3, 3], [4, 2], [-1, 2], [1, 100], [0, 2**31 - 1]])
def test_indices_out_of_order_or_range_are_refused(indices: list[int]) -> None:
    with pytest.raises(IntegrityError, match="strictly increase"):
        pack(indices, 100)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(index_sets(), st.data())
def test_altered_streams_are_refused_or_are_another_set(case: tuple[list[int], int], data: st.DataObject) -> None:
    indices, numel = case
    good = bytes(pack(indices, numel).tolist())
    change: Callable[[bytes], bytes] = data.draw(
        st.sampled_from(
            [
                lambda raw: raw[: len(raw) // 2],
                lambda raw: raw + b"\0",
                lambda raw: raw[:-1] + b"\xff",
                lambda raw: raw[:1] + b"\0" * (len(raw) - 1),
                lambda raw: b"\2" + raw[1:],
                lambda raw: raw[:1] + data.draw(st.binary(min_size=len(raw), max_size=len(raw))),
            ]
        )
    )
    bad = change(good)
    if bad == good:
        return
    try:
        found = unpack(torch.frombuffer(bytearray(bad), dtype=torch.uint8) if bad else empty(), len(indices), numel)
    except IntegrityError:
        return
    # Accepted, so it must be the one encoding of a proper set: nothing malformed slips through.
    again = sorted(set(found.tolist()))
    assert again == found.tolist()
    assert 0 <= min(again) <= max(again) < numel
    assert bytes(pack(again, numel).tolist()) == bad or bad[:1] != bytes(pack(again, numel)[:1].tolist())


def empty() -> Tensor:
    return torch.empty(0, dtype=torch.uint8)


@pytest.mark.parametrize("isa", ["scalar", "avx2"])
def test_the_checksum_is_crc32c(isa: str) -> None:
    def slow(data: bytes) -> int:
        c = 0xFFFFFFFF
        for byte in data:
            c ^= byte
            for _ in range(8):
                c = c >> 1 ^ (0x82F63B78 if c & 1 else 0)
        return c ^ 0xFFFFFFFF

    before = _native.isa()
    _native.set_isa(isa)
    try:
        assert kernels.checksum(torch.frombuffer(bytearray(b"123456789"), dtype=torch.uint8)) == 0xE3069283
        assert kernels.checksum(empty()) == 0
        generator = torch.Generator().manual_seed(4)
        for n in (1, 7, 8, 9, 12_287, 12_288, 12_289, 40_000):
            data = torch.randint(0, 256, (n + 1,), generator=generator, dtype=torch.uint8)[1:]
            assert kernels.checksum(data) == slow(bytes(data.tolist()))
    finally:
        _native.set_isa(before)


def test_the_package_functions_accept_any_layout() -> None:
    """Strided, double and half tensors go through the reference; the result is that of their float32 copies."""
    generator = torch.Generator().manual_seed(5)
    wide = torch.randn(2000, generator=generator)
    results: list[list[Any]] = []
    for g, r in ((wide[::2].contiguous(), torch.ones(1000)), (wide[::2], torch.ones(2000)[::2])):
        indices, values = torch.empty(100, dtype=torch.int32), torch.empty(100)
        found = kernels.select(g, r, kernels.threshold(g, r, 50), indices, values)
        results.append([found, indices[: found.count].tolist(), values[: found.count].tolist(), r.tolist()])
    assert results[0] == results[1]
    double = wide.double()
    out = torch.empty(2000, dtype=torch.bfloat16)
    assert kernels.encode_half(double, None, out) == 0
    assert torch.equal(out, wide.bfloat16())


def test_an_error_names_the_wrong_argument() -> None:
    g = torch.zeros(10)
    with pytest.raises(ValueError, match="sizes differ"):
        kernels.encode_half(g, torch.zeros(9), torch.empty(10, dtype=torch.float16))
    with pytest.raises(ValueError, match="neither float16"):
        kernels.encode_half(g, None, torch.empty(10))
    with pytest.raises(ValueError, match="scales"):
        kernels.encode_int8(g, None, torch.empty(10, dtype=torch.int8), torch.empty(2))
    with pytest.raises(ValueError, match="NaN"):
        kernels.select(g, None, float("nan"), torch.empty(1, dtype=torch.int32), torch.empty(1))
    with pytest.raises(ValueError, match="k:"):
        kernels.select_exact(g, None, 2, torch.empty(1, dtype=torch.int32), torch.empty(1))
    with pytest.raises(IntegrityError, match="outside"):
        kernels.scatter_add(torch.tensor([10], dtype=torch.int32), torch.ones(1), 1, g)
    with pytest.raises(ValueError, match="packed_bound"):
        kernels.pack_indices(torch.arange(5, dtype=torch.int32), 5, 100, empty())
