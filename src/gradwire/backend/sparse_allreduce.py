"""Sparse all-reduce: the sum of sparse COO tensors whose entries differ between ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.backend.op_transfers import OpTransfers, Steps
from gradwire.errors import ConfigError


class SparseSum:
    """1. every rank sends its number of entries; 2. sends the entries; 3. every rank sums them in rank order.

    The second exchange is a separate operation, because its sizes are not known before.
    """

    def __init__(self, tensor: Tensor, size: int) -> None:
        if tensor.layout != torch.sparse_coo:
            raise ConfigError(f"all_reduce: {tensor.layout} is not supported; of the sparse layouts only COO is")
        self._tensor = tensor
        mine = tensor.detach().coalesce()
        self._indices, self._values = mine.indices().contiguous(), mine.values().contiguous()
        self.counts = torch.zeros(size, dtype=torch.int64)
        self._rows: list[tuple[Tensor, Tensor]] = []

    def count(self, op: OpTransfers) -> Steps:
        own = torch.tensor([self._values.shape[0]])
        peers = op.group.peers
        yield from op.exchange(dict.fromkeys(peers, own), {peer: self.counts[peer : peer + 1] for peer in peers})
        self.counts[op.group.rank] = own[0]

    def move(self, op: OpTransfers) -> Steps:
        group = op.group
        width = self._values[0].numel() if self._values.shape[0] else _width(self._tensor)
        self._rows = [self._empty(int(count), width) for count in self.counts]
        self._rows[group.rank] = (self._indices.view(-1), self._values.view(-1))
        own = _joined(*self._rows[group.rank])
        received = {peer: _joined(*self._rows[peer]) for peer in group.peers}
        yield from op.exchange(dict.fromkeys(group.peers, own), received)
        for peer, entries in received.items():
            indices, values = self._rows[peer]
            indices.view(torch.uint8).copy_(entries[: indices.nbytes])
            values.view(torch.uint8).copy_(entries[indices.nbytes :])

    def copy_back(self) -> None:
        tensor, dense = self._tensor, self._tensor.dense_dim()
        total = torch.zeros_like(tensor.detach())
        for (indices, values), count in zip(self._rows, self.counts.tolist(), strict=True):
            shape = (count, *tensor.shape[tensor.dim() - dense :]) if dense else (count,)
            positions = indices.view(tensor.sparse_dim(), count)
            total = total + torch.sparse_coo_tensor(positions, values.view(shape), tensor.shape)
        with torch.no_grad():  # a detached sparse tensor would take the copy for itself
            tensor.copy_(total.coalesce())

    def _empty(self, count: int, width: int) -> tuple[Tensor, Tensor]:
        return torch.empty(self._indices.shape[0] * count, dtype=torch.int64), torch.empty(
            count * width, dtype=self._values.dtype
        )


def _width(tensor: Tensor) -> int:
    dense = tensor.dense_dim()
    return int(torch.Size(tensor.shape[tensor.dim() - dense :]).numel()) if dense else 1


def _joined(indices: Tensor, values: Tensor) -> Tensor:
    return torch.cat([indices.view(torch.uint8), values.view(torch.uint8)])
