"""Reading: hostile files give clear errors or partial results, never a crash."""

from __future__ import annotations

import random
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from gradwire.errors import ConfigError
from gradwire.events import Decided, Opened, Stepped
from gradwire.observe.files import MOST_LINE, PACKED, PLAIN, Readable, opened, pack, segment_path, segments, zstd
from gradwire.observe.reader import Damage, Follower, read
from gradwire.observe.sample import SampleShape
from tests.observe.recordings import small

HEAD = b'{"event":"opened","at":1.0,"format":"gradwire-events","version":1,"rank":0,"world_size":1,"wall":50.0}\n'
NOTE = b'{"event":"noted","at":2.0,"step":1}\n'


def put(folder: Path, body: bytes, suffix: str = PLAIN) -> Path:
    path = segment_path(folder, 0, 0, suffix)
    path.write_bytes(body)
    return path


def test_packed_and_plain_recordings_hold_the_same_records_in_order(tmp_path: Path) -> None:
    plain = list(read(small(tmp_path / "a")))
    packed = list(read(small(tmp_path / "b", packed=True)))
    assert plain == packed
    assert len(plain) > 900
    assert {record.rank for record in plain} == {0, 1, 2, 3}
    times = [record.time for record in plain]
    assert times == sorted(times)


def test_times_are_by_the_wall_clock(tmp_path: Path) -> None:
    put(tmp_path, HEAD + NOTE)
    assert [record.time for record in read(tmp_path)] == [50.0, 51.0]


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"hello\n", "not a gradwire recording"),
        (NOTE, "not a gradwire recording"),
        (HEAD.replace(b'"version":1', b'"version":2'), "schema 2, but this gradwire reads 1"),
        (HEAD.replace(b'"rank":0', b'"rank":-1'), "impossible rank"),
        (b"\x00" * 100 + b"\n", "not a gradwire recording"),
        (b"[" * 100_000 + b"\n", "not a gradwire recording"),
    ],
)
def test_a_file_of_another_kind_is_named(tmp_path: Path, body: bytes, complaint: str) -> None:
    put(tmp_path, body)
    with pytest.raises(ConfigError, match=complaint):
        list(read(tmp_path))
    follower = Follower(tmp_path)
    assert follower.poll() == []
    assert complaint in str(follower.damage)


def test_a_missing_recording_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="contains no recording"):
        list(read(tmp_path))
    with pytest.raises(ConfigError, match="no such recording"):
        list(read(tmp_path / "missing"))


def test_a_bad_file_beside_good_ones_is_a_note(tmp_path: Path) -> None:
    folder = small(tmp_path)
    segment_path(folder, 9, 0).write_bytes(b"junk\n")
    damage = Damage()
    assert len(list(read(folder, damage))) > 900
    assert "rank00009" in str(damage)


def test_damaged_lines_are_skipped_and_counted_and_unknown_events_too(tmp_path: Path) -> None:
    lines = [NOTE, b"{\n", b'{"event":"noted"}\n', b"\xff\xfe\n", b'{"event":"invented_later","at":3}\n', b"\n", NOTE]
    put(tmp_path, HEAD + b"".join(lines) + b'{"event":"noted","at":')
    damage = Damage()
    assert len(list(read(tmp_path, damage))) == 3
    assert (damage.lines, damage.unknown) == (5, 1)


def test_a_line_without_end_is_skipped_in_bounded_memory(tmp_path: Path) -> None:
    put(tmp_path, HEAD + b"x" * (5 * MOST_LINE) + b"\n" + NOTE)
    damage = Damage()
    assert len(list(read(tmp_path, damage))) == 2
    assert damage.lines == 1


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9, 0.999])
def test_any_cut_of_a_packed_file_gives_every_whole_line_before_it(tmp_path: Path, share: float) -> None:
    whole = segments(small(tmp_path, packed=True, shape=SampleShape(ranks=1, seconds=600.0)))[0].path.read_bytes()
    cut = whole[: int(share * len(whole))]
    put(tmp_path, cut, PACKED)
    left = zstd.ZstdDecompressor().decompress(cut).count(b"\n")
    damage, follower = Damage(), Follower(tmp_path)
    assert left > 100
    assert len(list(read(tmp_path, damage))) == len(follower.poll()) == left
    assert damage.lines == 1
    assert "truncated" in str(follower.damage)
    assert follower.poll() == []


def test_damage_inside_a_packed_file_keeps_what_is_before_it(tmp_path: Path) -> None:
    path = segments(small(tmp_path, packed=True, shape=SampleShape(ranks=1, seconds=600.0)))[0].path
    body, whole = bytearray(path.read_bytes()), len(list(read(path)))
    body[len(body) // 2 :] = bytes(255 - byte for byte in body[len(body) // 2 :])
    put(tmp_path, bytes(body), PACKED)
    found = len(list(read(tmp_path)))
    assert whole / 4 < found < whole
    assert len(Follower(tmp_path).poll()) == found


@pytest.mark.parametrize("size", [0, 3, 100])
def test_a_packed_file_cut_before_its_first_block_is_named(tmp_path: Path, size: int) -> None:
    put(tmp_path, segments(small(tmp_path, packed=True))[0].path.read_bytes()[:size], PACKED)
    with pytest.raises(ConfigError, match="not a gradwire recording"):
        list(read(tmp_path))
    assert Follower(tmp_path).poll() == []


def test_random_damage_never_crashes(tmp_path: Path) -> None:
    body = bytearray(segments(small(tmp_path))[0].path.read_bytes()[:20_000])
    chance = random.Random(5)
    for _ in range(60):
        hurt = bytearray(body)
        for _ in range(40):
            hurt[chance.randrange(body.index(b"\n") + 1, len(hurt))] = chance.randrange(256)
        put(tmp_path, bytes(hurt))
        found = [record.event for record in read(tmp_path)]
        assert isinstance(found[0], Opened)
        assert len(found) > 10


def test_scripts_in_strings_are_data(tmp_path: Path) -> None:
    line = b'{"event":"decided","at":2,"step":1,"bucket":0,"level":"off","reason":"<script>x</script>","version":1}\n'
    put(tmp_path, HEAD + line)
    [_, record] = read(tmp_path)
    assert isinstance(record.event, Decided)
    assert record.event.reason == "<script>x</script>"


def test_a_half_written_line_is_waited_for(tmp_path: Path) -> None:
    path = put(tmp_path, HEAD + NOTE[:10])
    follower = Follower(tmp_path)
    assert len(follower.poll()) == 1
    with path.open("ab") as file:
        file.write(NOTE[10:])
    assert len(follower.poll()) == 1
    assert not follower.damage


def test_a_segment_packed_while_it_is_opened_is_followed_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path, HEAD)
    follower = Follower(tmp_path)
    assert len(follower.poll()) == 1
    path.write_bytes(HEAD + NOTE)

    def late(path: Path) -> AbstractContextManager[Readable]:
        if path.name.endswith(PLAIN):
            put(tmp_path, pack(path.read_bytes()), PACKED)
            path.unlink()
        return opened(path)

    monkeypatch.setattr("gradwire.observe.reader.opened", late)
    assert len(follower.poll() + follower.poll()) == 1
    assert not follower.damage


def test_a_step_is_split_without_rest(tmp_path: Path) -> None:
    for record in read(small(tmp_path)):
        if isinstance(record.event, Stepped):
            step = record.event
            assert step.compute + step.encode + step.wire + step.wait == pytest.approx(step.seconds)
