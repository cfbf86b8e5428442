"""The decide room's contract: a bucket in, a decision with its reason out. Pure: state comes in, nothing is read."""

from __future__ import annotations

from typing import Protocol

from gradwire.flow import Bucket, Decision


class Controller(Protocol):
    """Chooses how hard each bucket is compressed."""

    def decide(self, bucket: Bucket) -> Decision: ...
