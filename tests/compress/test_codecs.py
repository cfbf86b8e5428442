"""Contract of every codec: frame and residual add up to the input, sizes are fixed, bad bytes are refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.compress import kernels
from gradwire.compress.base import ChunkSpan
from gradwire.compress.build import build_codec, check_chain
from gradwire.compress.frame import HEADER
from gradwire.compress.lossless import VERSION
from gradwire.compress.prune import Orders
from gradwire.compress.shared_mask import SharedMaskCodec
from gradwire.compress.topk import index_bound
from gradwire.errors import ConfigError, IntegrityError
from gradwire.level import Level

LEVELS = [
    "fp16", "bf16", "int8", "int4", "topk:0.01", "topk:0.1+fp16", "topk:0.01+int8", "topk:0.3+int4", "exactk:0.01",
    "exactk:0.5+int8", "randk:0.1", "randk:0.01+int8", "zstd", "int8+zstd", "topk:0.01+int4+zstd",
    "int2", "topk:0.1+int2", "randk:0.1+int2", "int2+zstd", "prune:0.5+int2", "prune:0.5+int8",
    "prune:0.3+topk:0.05+int8", "prune:0.9+fp16+zstd",
]  # fmt: skip


class FakeWeights:
    """Weights drawn from a seed."""

    def __init__(self, numel: int) -> None:
        self.data = torch.randn(numel, generator=torch.Generator().manual_seed(9))

    def read(self, start: int, numel: int) -> torch.Tensor:
        return self.data[start : start + numel].clone()

    def zero(self, places: torch.Tensor) -> None:
        self.data[places] = 0.0


def span(numel: int, step: int = 0) -> ChunkSpan:
    return ChunkSpan(step, 1, 0, numel, FakeWeights(numel))


def made(level: str, gradient: torch.Tensor, residual: torch.Tensor | None, step: int = 0) -> torch.Tensor:
    codec = build_codec(Level.parse(level))
    frame = torch.zeros(codec.size_of(gradient.numel()), dtype=torch.uint8)
    codec.encode(gradient, residual, frame, span(gradient.numel(), step), seed=7)
    return frame


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=25, deadline=None)
@given(numel=st.integers(0, 5000), scale=st.sampled_from([1e-6, 1.0, 1e3]), seed=st.integers(0, 99))
def test_frame_and_residual_add_up_to_the_input(level: str, numel: int, scale: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    gradient = torch.randn(numel, generator=generator) * scale
    residual = torch.randn(numel, generator=generator) * scale
    before = gradient + residual
    frame = made(level, gradient, residual)
    out = torch.full((numel,), 5.0)
    build_codec(Level.parse(level)).decode(frame, out, span(numel))
    torch.testing.assert_close(out + residual, before, atol=2e-6 * scale, rtol=2e-6)


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=25, deadline=None)
@given(numel=st.integers(1, 5000), wild=st.sampled_from([float("nan"), float("inf"), -float("inf")]), data=st.data())
def test_a_nan_is_seen_by_all_ranks_and_leaves_the_residual(
    level: str, numel: int, wild: float, data: st.DataObject
) -> None:
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    gradient, residual = torch.randn(numel, generator=generator), torch.randn(numel, generator=generator)
    gradient[data.draw(st.integers(0, numel - 1))] = wild
    waited, whole = residual.clone(), gradient + residual
    frame, out = made(level, gradient, residual), torch.empty(numel)
    build_codec(Level.parse(level)).decode(frame, out, span(numel))
    assert not out.isfinite().all()
    assert residual.isfinite().all()
    read = out.isfinite()
    torch.testing.assert_close(
        (out + residual)[read & whole.isfinite()], whole[read & whole.isfinite()], atol=1e-5, rtol=1e-5
    )
    kept = torch.isclose(residual, waited, atol=1e-5) | torch.isclose(residual, whole, atol=1e-5)
    assert kept[~read].all()


def test_a_nan_after_a_full_selection_is_still_seen() -> None:
    gradient = torch.ones(10_000)
    gradient[-1] = torch.inf
    out = torch.empty(10_000)
    build_codec(Level.parse("topk:0.01")).decode(made("topk:0.01", gradient, torch.zeros(10_000)), out, span(10_000))
    assert not out.isfinite().all()


@pytest.mark.parametrize("level", LEVELS)
def test_decoding_multiplies_by_the_weight_and_adds(level: str) -> None:
    gradient = torch.randn(3000)
    frame = made(level, gradient, torch.zeros(3000))
    codec = build_codec(Level.parse(level))
    once, added = torch.empty(3000), torch.ones(3000)
    codec.decode(frame, once, span(3000))
    codec.decode(frame, added, span(3000), weight=0.5, add=True)
    torch.testing.assert_close(added, 1 + 0.5 * once)


@pytest.mark.parametrize(("ratio", "numel"), [(0.1, 100_000), (0.01, 500_000), (0.001, 1_000_000)])
@pytest.mark.parametrize("tail", ["gaussian", "layers"])
def test_a_threshold_selects_the_requested_share(ratio: float, numel: int, tail: str) -> None:
    generator = torch.Generator().manual_seed(3)
    gradient = torch.randn(numel, generator=generator)
    if tail == "layers":
        gradient *= torch.logspace(-3, 0, 10).repeat_interleave(numel // 10)
    codec = build_codec(Level(select="topk", ratio=ratio))
    frame = torch.zeros(codec.size_of(numel), dtype=torch.uint8)
    sent = codec.encode(gradient, torch.zeros(numel), frame, span(numel), seed=None).sent
    assert 0.9 * ratio * numel <= sent <= 1.1 * ratio * numel


@pytest.mark.parametrize("level", ["topk:0.01", "topk:0.001", "topk:0.1+int8"])
def test_a_frame_has_exactly_its_size_and_uses_most_of_it(level: str) -> None:
    numel = 1_000_000
    gradient = torch.randn(numel, generator=torch.Generator().manual_seed(4))
    frame = made(level, gradient, torch.zeros(numel))
    assert frame.numel() == build_codec(Level.parse(level)).size_of(numel)
    used = HEADER + int.from_bytes(bytes(frame[20:24].tolist()), "little")
    assert used <= frame.numel() <= 1.11 * used  # 5 % for a threshold that selects more, 5 % for the index code


@settings(max_examples=300, deadline=None)
@given(numel=st.integers(1, 300), data=st.data())
def test_any_smaller_set_of_indices_fits_the_bound(numel: int, data: st.DataObject) -> None:
    most = data.draw(st.integers(1, numel))
    bound = index_bound(most, numel)
    assert all(kernels.packed_bound(count, numel) <= bound for count in range(most + 1))


def test_packed_indices_take_few_bytes() -> None:
    codec = build_codec(Level.parse("topk:0.01+int8"))
    numel = 1_000_000
    per_element = codec.size_of(numel) / (0.01 * numel)
    assert per_element < 2.4  # one byte of value and well under two of index, against eight for a plain pair


@pytest.mark.parametrize("level", LEVELS)
def test_truncated_frames_are_refused(level: str) -> None:
    gradient = torch.randn(2000)
    frame = made(level, gradient, torch.zeros(2000))
    codec = build_codec(Level.parse(level))
    for length in (0, 1, 7, 8, 31, 32, 40, frame.numel() // 3):
        with pytest.raises(IntegrityError):
            codec.decode(frame[:length].clone(), torch.empty(2000), span(2000))


@pytest.mark.parametrize("level", ["int8", "topk:0.05+int8", "topk:0.4", "randk:0.1", "int8+zstd", "prune:0.5+int8"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_changed_byte_is_refused_or_is_padding(level: str, data: st.DataObject) -> None:
    gradient = torch.randn(1500, generator=torch.Generator().manual_seed(1))
    frame = made(level, gradient, torch.zeros(1500))
    codec = build_codec(Level.parse(level))
    good = torch.empty(1500)
    codec.decode(frame, good, span(1500))
    place = data.draw(st.integers(0, frame.numel() - 1))
    frame[place] ^= data.draw(st.integers(1, 255))
    out = torch.empty(1500)
    try:
        codec.decode(frame, out, span(1500))
    except IntegrityError:
        return
    assert torch.equal(out, good), "a frame that still decodes must mean the same"


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=40, deadline=None)
@given(junk=st.binary(max_size=600))
def test_random_bytes_are_refused(level: str, junk: bytes) -> None:
    frame = torch.frombuffer(bytearray(junk), dtype=torch.uint8) if junk else torch.empty(0, dtype=torch.uint8)
    with pytest.raises(IntegrityError):
        build_codec(Level.parse(level)).decode(frame, torch.empty(100), span(100))


def test_a_frame_of_another_level_or_size_is_refused() -> None:
    frame = made("int8", torch.randn(512), torch.zeros(512))
    with pytest.raises(IntegrityError, match="disagree on the level"):
        build_codec(Level.parse("fp16")).decode(frame, torch.empty(512), span(512))
    with pytest.raises(IntegrityError, match="512 elements"):
        build_codec(Level.parse("int8")).decode(frame, torch.empty(256), span(256))


def test_pruned_elements_are_sent_within_a_full_turn() -> None:
    codec = build_codec(Level.parse("prune:0.5+fp16"))
    weights = FakeWeights(400)
    residual, restored = torch.zeros(400), torch.zeros(400)
    for step in range(32):
        place = ChunkSpan(step, 0, 0, 400, weights)
        frame = torch.zeros(codec.size_of(400), dtype=torch.uint8)
        codec.encode(torch.ones(400), residual, frame, place, seed=None)
        codec.decode(frame, restored, place, add=True)
    assert (restored > 0).all(), "no coordinate may starve"
    torch.testing.assert_close(restored + residual, torch.full((400,), 32.0))


def test_levels_that_prune_share_one_order_of_the_weights() -> None:
    orders: Orders = {}
    for share in (0.3, 0.1, 0.03):
        codec = build_codec(Level.parse(f"prune:0.5+topk:{share}"), orders=orders)
        codec.encode(
            torch.randn(100),
            torch.zeros(100),
            torch.zeros(4096, dtype=torch.uint8)[: codec.size_of(100)],
            span(100),
            7,
        )
    assert len(orders) == 1


def test_a_leader_that_sends_too_many_indices_is_refused() -> None:
    modest, greedy = (SharedMaskCodec(Level.parse(f"sharedk:{share}")) for share in (0.1, 0.9))
    frame = torch.zeros(greedy.mask_size(1000), dtype=torch.uint8)
    greedy.lead(torch.randn(1000), None, frame)
    with pytest.raises(IntegrityError):
        modest.follow(frame, 1000)


def test_an_empty_zstd_frame_is_refused() -> None:
    codec = build_codec(Level.parse("int8+zstd"))
    frame = torch.zeros(codec.size_of(100), dtype=torch.uint8)
    frame[:4] = torch.tensor([ord("g"), ord("z"), VERSION, 1], dtype=torch.uint8)
    with pytest.raises(IntegrityError):
        codec.decode(frame, torch.empty(100), span(100))


def test_zero_mode_prunes_the_weights() -> None:
    codec = build_codec(Level.parse("prune:0.25+fp16"), zero_pruned=True)
    weights = FakeWeights(400)
    smallest = weights.data.abs().argsort()[:100]
    residual = torch.zeros(400)
    frame = torch.zeros(codec.size_of(400), dtype=torch.uint8)
    place = ChunkSpan(0, 0, 0, 400, weights)
    codec.encode(torch.ones(400), residual, frame, place, seed=None)
    out = torch.empty(400)
    codec.decode(frame, out, place)
    assert (weights.data[smallest] == 0).all()
    assert (out[smallest] == 0).all()
    assert (residual == 0).all()
    assert int((weights.data == 0).sum()) == 100


@pytest.mark.parametrize(
    "text", ["lowrank:4+int2", "lowrank:4+zstd", "prune:0.5+lowrank:2", "sharedk:0.1+zstd", "prune:0.5+sharedk:0.1"]
)
def test_chains_that_cannot_work_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="level"):
        check_chain(Level.parse(text))


def test_stochastic_rounding_of_a_whole_frame_is_unbiased() -> None:
    gradient = torch.full((4096,), 0.3)
    gradient[::256] = 10.0  # sets each block's scale, so that 0.3 lies between two steps
    codec = build_codec(Level.parse("int8"))
    total = torch.zeros(4096)
    for step in range(200):
        frame = torch.zeros(codec.size_of(4096), dtype=torch.uint8)
        codec.encode(gradient, None, frame, span(4096), seed=step)
        codec.decode(frame, total, span(4096), weight=1 / 200, add=True)
    mean = total[gradient < 1].mean()
    # A step is 10/127; the mean of 4,080 x 200 draws has a deviation of step / 2 / sqrt(816,000).
    assert abs(mean - 0.3) < 5 * (10 / 127) / 2 / 816_000**0.5


@pytest.mark.parametrize("seed", range(20))
def test_clustered_indices_are_packed_and_unpacked(seed: int) -> None:
    """Real gradients are zero over whole spans: gaps far longer than the index code expects."""
    generator = torch.Generator().manual_seed(seed)
    gradient = torch.zeros(26_624)
    for start in torch.randint(0, 26_000, (40,), generator=generator).tolist():
        gradient[start : start + 33] = torch.randn(33, generator=generator)[: 26_624 - start]
    frame = made("topk:0.05", gradient, torch.zeros(26_624))
    out = torch.empty(26_624)
    build_codec(Level.parse("topk:0.05")).decode(frame, out, span(26_624))
    assert torch.equal(out[out != 0], gradient[out != 0])


@pytest.mark.parametrize("level", LEVELS)
def test_the_energies_of_a_frame_say_where_its_energy_is(level: str) -> None:
    numel = 40_000
    gradient = torch.randn(numel, generator=torch.Generator().manual_seed(4))
    gradient[numel // 2 :] *= 30.0
    codec, frame = build_codec(Level.parse(level)), made(level, gradient, None)
    energies, critical = codec.energies(frame), codec.critical(frame)
    if codec.level.lossless:
        assert energies is None  # nothing of it may be lost
        return
    assert energies is not None
    assert energies.offset == critical
    assert len(energies.values) * energies.span < frame.numel() - critical + energies.span
    assert (energies.values >= 0).all()
    if level.startswith(("fp16", "bf16", "int")):
        half = len(energies.values) // 2
        assert energies.values[half - 1 :].sum() > 0.99 * energies.values.sum()
        assert energies.values[: half - 1].min() > 0


def test_energies_of_an_overflowing_gradient_are_finite() -> None:
    gradient = torch.ones(2000)
    gradient[100] = torch.inf
    for level in ("fp16", "int8", "int2"):
        energies = build_codec(Level.parse(level)).energies(made(level, gradient, None))
        assert energies is not None
        assert torch.from_numpy(energies.values).isfinite().all()
