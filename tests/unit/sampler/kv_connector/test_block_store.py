"""Blocks as files: what is read is what was written, or nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest

from services.sampler.kv_connector.block_file import BadBlock, decode, encode
from services.sampler.kv_connector.block_store import STALE_TEMPORARY_SECONDS, BlockStore
from services.sampler.kv_connector.scope import Scope, tier_id
from tests.doubles.small_disk import full, small_disk
from tests.unit.sampler.kv_connector.blocks import GEOMETRY, NAMESPACE, key, payload, store


def test_a_block_comes_back_as_it_went_in(tmp_path: Path) -> None:
    blocks = store(tmp_path)
    assert blocks.write(key(1), payload(1)) > GEOMETRY.block_bytes
    assert bytes(blocks.read(key(1))) == payload(1)
    assert [entry.key for entry in blocks.entries()] == [key(1)]


def test_a_block_that_is_there_is_renewed_and_not_written_again(tmp_path: Path) -> None:
    blocks = store(tmp_path)
    blocks.write(key(1), payload(1))
    os.utime(blocks.path(key(1)), (1, 1))
    assert blocks.write(key(1), payload("another")) == 0
    assert bytes(blocks.read(key(1))) == payload(1)
    assert next(iter(blocks.entries())).used > 1


@pytest.mark.parametrize("position", range(0, 700, 13))
def test_any_flipped_bit_is_refused_and_the_block_is_gone(tmp_path: Path, position: int) -> None:
    blocks = store(tmp_path)
    blocks.write(key(1), payload(1))
    file = blocks.path(key(1))
    data = bytearray(file.read_bytes())
    data[position % len(data)] ^= 1 << position % 8
    file.write_bytes(data)
    with pytest.raises(BadBlock):
        blocks.read(key(1))
    assert not file.exists()


@pytest.mark.parametrize("size", [0, 3, 11, 40, 300])
def test_a_torn_file_is_refused_and_gone(tmp_path: Path, size: int) -> None:
    blocks = store(tmp_path)
    blocks.write(key(1), payload(1))
    file = blocks.path(key(1))
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(BadBlock):
        blocks.read(key(1))
    assert not file.exists()


def refusal(data: bytes, name: object = 1) -> str:
    with pytest.raises(BadBlock) as caught:
        decode(data, key(name), GEOMETRY)
    return caught.value.cause


def test_a_sound_block_of_another_key_or_geometry_is_refused() -> None:
    assert refusal(encode(key(2), GEOMETRY, payload(2))) == "key"
    wider = msgspec.structs.replace(GEOMETRY, layers=4)
    assert refusal(encode(key(1), wider, payload(1) * 2)) == "geometry"
    assert refusal(encode(key(1), GEOMETRY, payload(1)[:-1])) == "geometry"
    other = msgspec.structs.replace(GEOMETRY, dtype="bfloat16")
    assert refusal(encode(key(1), other, payload(1))) == "geometry"


def test_a_missing_block_and_one_that_cannot_be_read_are_told_apart(tmp_path: Path) -> None:
    blocks = store(tmp_path)
    with pytest.raises(BadBlock) as missing:
        blocks.read(key(1))
    blocks.path(key(1)).mkdir(parents=True)
    with pytest.raises(BadBlock) as unreadable:
        blocks.read(key(1))
    assert (missing.value.cause, unreadable.value.cause) == ("missing", "unreadable")


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        blocks = store(disk)
        blocks.write(key(1), payload(1))
        with full(disk), pytest.raises(OSError, match="No space"):
            blocks.write(key(2), payload(2))
        assert [file.name for file in disk.rglob("*") if file.is_file()] == [f"{key(1)}.kv"]


def test_what_a_dead_writer_left_goes_after_a_while(tmp_path: Path) -> None:
    blocks = store(tmp_path)
    blocks.write(key(1), payload(1))
    left = blocks.path(key(1)).with_suffix(".1.2.tmp")
    left.write_bytes(b"half")
    assert len(list(blocks.entries())) == 1
    assert left.exists()
    old = time.time() - STALE_TEMPORARY_SECONDS - 1
    os.utime(left, (old, old))
    assert len(list(blocks.entries())) == 1
    assert not left.exists()


def test_engines_that_differ_in_anything_never_meet(tmp_path: Path) -> None:
    scope = Scope(
        engine="e 1", model_fingerprint="m", hash_algorithm="h", hash_seed="1", dtype="float32", geometry=GEOMETRY
    )
    others: list[dict[str, object]] = [
        {"engine": "e 2"},
        {"model_fingerprint": "n"},
        {"hash_algorithm": "i"},
        {"hash_seed": "2"},
        {"dtype": "bfloat16"},
        {"geometry": msgspec.structs.replace(GEOMETRY, block_size=8)},
    ]
    names = {msgspec.structs.replace(scope, **other).namespace for other in others}
    assert len(names | {scope.namespace}) == len(others) + 1
    BlockStore(tmp_path, scope.namespace, GEOMETRY).write(key(1), payload(1))
    with pytest.raises(BadBlock):
        store(tmp_path).read(key(1))
    assert NAMESPACE not in names


def test_a_directory_keeps_its_id_and_two_have_two(tmp_path: Path) -> None:
    first = tier_id(tmp_path / "a")
    assert tier_id(tmp_path / "a") == first
    assert tier_id(tmp_path / "b") != first
    assert sorted(file.name for file in (tmp_path / "a").iterdir()) == ["tier.id"]
