"""Device codec: encodes and decodes tensors of a device there; frames are in host memory.

The frames are those that the same level's codec writes for the same values in host memory. Only frames cross the bus,
and for sparse levels the received indices, which the host unpacks: a bit stream is read in order. The host adds a
frame's checksum, and checks that of a received one.

Called from threads of the pipeline, which wait for copies; never from the training thread.
"""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from gradwire.compress import kernels
from gradwire.compress.base import ChunkSpan, Encoded
from gradwire.compress.dense import DenseCodec
from gradwire.compress.device_memory import DeviceMemory
from gradwire.compress.frame import HEADER, aligned, complete, kinds, open_frame
from gradwire.compress.topk import TopK
from gradwire.compress.values import CODECS, Ranges
from gradwire.errors import ConfigError, IntegrityError
from gradwire.level import Level
from gradwire.types import Energies

if TYPE_CHECKING:
    from gradwire.compress.base import Codec

BITS: Final = {"int8": 8, "int4": 4, "int2": 2}
HALVES: Final = {"fp16": torch.float16, "bf16": torch.bfloat16}


def encodes_on_device(level: Level) -> bool:
    """Whether there are kernels for a level; the others are encoded in host memory."""
    if level.prune or level.lossless:
        return False
    return level.select in ("topk", "exactk") or (level.select == "all" and level.values != "fp32")


def load_kernels() -> tuple[ModuleType, ModuleType]:
    """The modules that launch kernels; ConfigError where triton is not installed."""
    try:
        from gradwire.compress.kernels.triton import launch, launch_sparse
    except ImportError as error:
        raise ConfigError(
            f"compress.encode: 'gpu' needs triton ({error}); pip install 'gradwire[gpu]', or use 'host'"
        ) from error
    return launch, launch_sparse


class DeviceCodec:
    """`codec` is the level's own, which says how long frames are. `host_residuals`: residuals are in host memory, and
    are copied to the device and back with each encoding."""

    def __init__(self, codec: DenseCodec | TopK, memory: DeviceMemory, host_residuals: bool = False) -> None:
        self._codec = codec
        self._memory = memory
        self._host_residuals = host_residuals
        self._launch, self._sparse = load_kernels()

    @property
    def level(self) -> Level:
        return self._codec.level

    def size_of(self, numel: int) -> int:
        return self._codec.size_of(numel)

    def encode(
        self, gradient: Tensor, residual: Tensor | None, frame: Tensor, span: ChunkSpan, seed: int | None, kept: int = 0
    ) -> Encoded:
        """1. the kernels write the frame in device memory, 2. it is copied, 3. the host adds the checksum."""
        if residual is not None and self._host_residuals:
            memory = self._memory.mine()
            here = memory.take("residual", residual.nbytes).view(residual.dtype)
            memory.to_device(residual, here)
            encoded = self._encode(gradient, here, frame, seed, kept)
            memory.to_host(here, residual)
            return encoded
        return self._encode(gradient, residual, frame, seed, kept)

    def _encode(self, gradient: Tensor, residual: Tensor | None, frame: Tensor, seed: int | None, kept: int) -> Encoded:
        memory = self._memory.mine()
        staged = memory.take("frame", frame.numel())
        if isinstance(self._codec, TopK):  # 1
            form = self._codec.form(gradient.numel())
            scratch = memory.take("scratch", self._sparse.scratch_bytes(gradient.numel(), form.capacity))
            encode = partial(self._sparse.encode_sparse, gradient, residual, staged, form, scratch, seed, kept)
        else:
            encode = partial(self._encode_dense, gradient, residual, staged, seed, kept)
        memory.stream.launch(encode)
        memory.to_host(staged, frame)  # 2
        return Encoded(*complete(frame))  # 3

    def decode(
        self, frame: Tensor, out: Tensor, span: ChunkSpan, weight: float = 1.0, add: bool = False, whole: bool = True
    ) -> None:
        if not whole:
            raise IntegrityError("a frame with lost values cannot be decoded on a device")
        self._decode(frame[None], out, weight, add)

    def decode_mean(self, frames: Tensor, mean: Tensor, span: ChunkSpan) -> None:
        """The mean over the rows of `frames`, added in their order."""
        self._decode(frames, mean, 1.0 / len(frames), add=False)

    def critical(self, frame: Tensor) -> int:
        return self._codec.critical(frame)

    def places(self, frame: Tensor, span: ChunkSpan, missing: Ranges) -> Tensor:
        return self._codec.places(frame, span, missing)

    def energies(self, frame: Tensor) -> Energies | None:
        return self._codec.energies(frame)

    def _encode_dense(
        self, gradient: Tensor, residual: Tensor | None, staged: Tensor, seed: int | None, kept: int
    ) -> None:
        numel, values = gradient.numel(), self.level.values
        codec = CODECS[values]
        cut, body = HEADER + codec.head(numel), codec.nbytes(numel)
        words = staged[:HEADER].view(torch.int32)
        words.zero_()
        for word, value in enumerate((*kinds(self.level), numel, numel, 0, body)):
            words[word].fill_(value)
        nonfinite, data = words[6:7], staged[cut : HEADER + body]
        if values in BITS:
            scales = staged[HEADER:cut].view(torch.float32)
            self._launch.encode_quantised(gradient, residual, data, scales, nonfinite, seed, BITS[values], kept)
        else:
            self._launch.encode_half(gradient, residual, data.view(HALVES[values]), nonfinite, kept)

    def _decode(self, frames: Tensor, out: Tensor, weight: float, add: bool) -> None:
        for frame in frames:
            header = open_frame(frame, self.level, out.numel())
            expected = aligned(header.index) + CODECS[self.level.values].nbytes(header.count)
            if header.body != expected:
                raise IntegrityError(f"frame body of {header.body} bytes does not fit {header.count} values")
        if isinstance(self._codec, TopK):
            self._decode_sparse(frames, out, weight, add)
        else:
            self._decode_dense(frames, out, weight, add)

    def _decode_dense(self, frames: Tensor, out: Tensor, weight: float, add: bool) -> None:
        memory, values = self._memory.mine(), self.level.values
        staged = memory.take("received", frames.numel())
        memory.to_device(frames.reshape(-1), staged)
        bodies = staged.view(len(frames), -1)[:, HEADER:]
        if values in BITS:
            decode = partial(self._launch.decode_quantised, bodies, out, weight, add, BITS[values])
        else:
            decode = partial(self._launch.decode_half, bodies, out, weight, add, values == "bf16")
        memory.stream.launch(decode)

    def _decode_sparse(self, frames: Tensor, out: Tensor, weight: float, add: bool) -> None:
        """1. the host unpacks each frame's indices, 2. they and the values are copied, 3. added, rank by rank."""
        memory, level = self._memory.mine(), self.level
        if not add:
            memory.stream.launch(out.zero_)
        for frame in frames:
            header = open_frame(frame, level, out.numel(), whole=False)
            values = HEADER + aligned(header.index)
            indices = torch.empty(header.count, dtype=torch.int32)  # 1
            kernels.unpack_indices(frame[HEADER : HEADER + header.index], header.count, out.numel(), indices)
            cut = aligned(indices.nbytes)  # 2
            length = HEADER + header.body - values
            staged = memory.take("received", cut + length)
            memory.to_device(indices, staged[: indices.nbytes].view(torch.int32))
            memory.to_device(frame[values : values + length], staged[cut:])
            places, body = staged[: indices.nbytes].view(torch.int32), staged[cut:]
            memory.stream.launch(partial(self._sparse.add_sparse, places, body, out, weight, level.values))  # 3


def device_codec(codec: Codec, memory: DeviceMemory, host_residuals: bool = False) -> DeviceCodec:
    """The codec of a level that `encodes_on_device`."""
    assert isinstance(codec, DenseCodec | TopK), "other codecs have no kernels"
    return DeviceCodec(codec, memory, host_residuals)
