"""Tensor checks: validates the tensors and ranks of a call before anything is sent.

Torch's own tests and users look for gloo's wording: invalid tensor size, invalid tensor type, invalid root
rank, split sizes. gloo raises RuntimeError, so TensorError is one as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gradwire.errors import ConfigError


class TensorError(ConfigError, RuntimeError):
    """Tensors or ranks that do not fit the call."""


def single(tensors: Sequence[Tensor], name: str) -> Tensor:
    """The only tensor of a list."""
    if len(tensors) != 1:
        raise TensorError(f"{name}: takes one tensor per rank, not {len(tensors)}")
    return tensors[0]


def root_in(root: int, size: int, name: str) -> int:
    """`root`, which must be a rank of the group."""
    if not 0 <= root < size:
        raise TensorError(f"{name}: invalid root rank {root}; this group has ranks 0 to {size - 1}")
    return root


def sized(flats: Sequence[Tensor], size: int, count: int | None, what: str) -> None:
    """One tensor for each rank, each of `count` elements if that is given."""
    if len(flats) != size:
        raise TensorError(f"{what}: needs {size} tensors, one for each rank, not {len(flats)}")
    if count is not None and any(flat.numel() != count for flat in flats):
        counts = sorted({flat.numel() for flat in flats})
        raise TensorError(
            f"{what}: invalid tensor size: every tensor must have {count} elements, not {' or '.join(map(str, counts))}"
        )


def parts_fit(whole: Tensor, part: Tensor, size: int, what: str, other: str) -> None:
    """`whole` has the size of `size` parts and the type of `part`."""
    alike([whole], part, what)
    if whole.numel() != part.numel() * size:
        raise TensorError(
            f"{what}: invalid tensor size: must be world size times {other} size ({size} x {part.numel()}), "
            f"not {whole.numel()}"
        )


def alike(tensors: Sequence[Tensor], other: Tensor, what: str) -> None:
    """All of the type of `other`."""
    odd = next((tensor.dtype for tensor in tensors if tensor.dtype != other.dtype), None)
    if odd is not None:
        raise TensorError(f"{what}: invalid tensor type, expected {other.dtype}, got {odd}")


def split(flat: Tensor, tensor: Tensor, splits: Sequence[int], size: int, what: str) -> list[Tensor]:
    """Parts by rows of the first dimension; equal ones when no sizes are given."""
    rows = tensor.shape[0] if tensor.dim() else tensor.numel()
    if not splits:
        if rows % size:
            raise TensorError(f"all_to_all: the {what}'s first dimension, {rows}, does not divide into {size} parts")
        splits = [rows // size] * size
    if len(splits) != size or sum(splits) != rows:
        raise TensorError(
            f"all_to_all: split sizes of the {what} must be {size} numbers that add up to dim 0, {rows}: {splits}"
        )
    width = flat.numel() // rows if rows else 0
    return list(flat.split([rows_of * width for rows_of in splits]))
