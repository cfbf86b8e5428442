"""Frame header: the first 32 bytes of every tree frame, and the wire tags that match a send with its receive.

The header carries the plan's Tag (epoch, version, step, vote), the number of members in the sum, and the number of
elements. The wire tag encodes kind, version, step, bucket, piece and edge, so frames of different plans or steps are
never mixed up.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from gradwire.errors import IntegrityError
from gradwire.plan.membership.messages import Tag
from gradwire.tree.role import Phase

SIZE: Final = 32
_MAGIC: Final = 0x6777
_FORM: Final = struct.Struct("<HHIIIIIQ")

# The first four bits of a wire's tag.
DATA, CONTROL, PROBE, SIDE, RESULT, STATE = 1, 2, 3, 4, 5, 6


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """The sum of `contributors` members over `numel` elements; `form` is a hash of the level that encoded it."""

    tag: Tag
    contributors: int
    numel: int
    form: int

    def write(self, frame: Tensor) -> None:
        tag = self.tag
        numbers = self.contributors, self.numel, self.form, tag.epoch, tag.version, tag.vote, tag.step
        frame.copy_(torch.frombuffer(bytearray(_FORM.pack(_MAGIC, *numbers)), dtype=torch.uint8))

    @classmethod
    def read(cls, frame: Tensor) -> FrameHeader:
        magic, contributors, numel, form, epoch, version, vote, step = _FORM.unpack(bytes(frame.tolist()))
        if magic != _MAGIC:
            raise IntegrityError("tree frame: wrong magic number; install the same gradwire version on every rank")
        return cls(Tag(epoch, version, step, vote), contributors, numel, form)

    def check(self, tag: Tag, numel: int, form: int) -> None:
        """IntegrityError unless step, plan, piece and level are the same."""
        theirs = (self.tag.epoch, self.tag.version, self.tag.step, self.numel, self.form)
        ours = (tag.epoch, tag.version, tag.step, numel, form)
        if theirs != ours:
            raise IntegrityError(f"tree frame (epoch, plan, step, elements, form): received {theirs}, expected {ours}")


def wire_tag(tag: Tag, bucket: int, piece: int, phase: Phase, end: int) -> int:
    """64 bits: kind 4, epoch and version 10, step 12, bucket 10, piece 12, phase 2, edge 14."""
    number = DATA << 10 | spread(tag.epoch * 0x9E3779B1 + tag.version, 10)
    for value, bits in ((tag.step, 12), (bucket, 10), (piece, 12), (phase, 2), (end, 14)):
        number = number << bits | value & (1 << bits) - 1
    return number


def spread(number: int, bits: int) -> int:
    """Epochs and versions grow by thousands; a multiplicative hash spreads them over a few bits."""
    return (number * 0x85EBCA77 & 0xFFFFFFFF) >> (32 - bits)


def state_tag(epoch: int, step: int, piece: int) -> int:
    """For one piece of a replica state that is transferred after `step`."""
    return STATE << 60 | spread(epoch, 12) << 48 | (step & 0xFFFFFF) << 24 | piece


def result_tag(step: int, bucket: int) -> int:
    """For the result of a bucket that a member missed and requested."""
    return RESULT << 60 | (step & 0xFFFFFFFF) << 16 | bucket
