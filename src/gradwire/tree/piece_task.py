"""Piece task: the input of one piece reduction."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gradwire.compress.base import ChunkSpan
from gradwire.compress.residual import KEPT, ResidualSpan
from gradwire.level import Level
from gradwire.plan.membership.messages import Tag
from gradwire.tree.partition import Piece
from gradwire.tree.side_routes import SideRoutes


@dataclass(frozen=True, slots=True)
class PieceTask:
    """Input of a piece reduction: the piece's tensors, its level, its step's tag, and the member."""

    rank: int
    members: tuple[int, ...]
    tag: Tag
    bucket: int
    piece: Piece
    level: Level
    gradient: Tensor
    residual: Tensor
    stochastic: bool
    tolerance: float
    side_routes: SideRoutes | None = None
    weight: int = 1

    @property
    def span(self) -> ChunkSpan:
        return ChunkSpan(self.tag.step, self.bucket, self.piece.start, self.piece.numel)

    @property
    def kept(self) -> ResidualSpan:
        return ResidualSpan(self.residual, self.span.seed(self.rank) ^ KEPT)

    @property
    def seed(self) -> int | None:
        return self.span.seed(self.rank) if self.stochastic else None
