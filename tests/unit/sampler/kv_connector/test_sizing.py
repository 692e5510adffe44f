"""docs/sizing.md's formulas of the tier, against the files and the catalog that the real parts write."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from services.common.redis_url import parse_redis_url
from services.sampler.kv_connector.block_file import BlockGeometry
from services.sampler.kv_connector.block_store import BlockStore
from services.sampler.kv_connector.catalog import Catalog
from tests.doubles.sizing import bytes_of, memory_of_keys
from tests.doubles.valkey import ValkeyProcess
from tests.unit.sampler.kv_connector.blocks import NAMESPACE, key

FEW, MANY = 200, 4200
WIDTHS = {"float32": 4, "bfloat16": 2}


def geometry(dtype: str) -> BlockGeometry:
    row = 2 * 128 * WIDTHS[dtype]
    return BlockGeometry(layers=36, kv_heads=8, block_size=32, row_bytes=row, head_dim=128, dtype=dtype)


@pytest.mark.parametrize("dtype", WIDTHS)
def test_a_block_takes_at_most_what_the_formula_says(dtype: str, tmp_path: Path) -> None:
    """And no more than the room for its header less."""
    shape = geometry(dtype)
    store = BlockStore(tmp_path, NAMESPACE, shape)
    store.prepare()
    written = store.write(key("one"), bytes(shape.block_bytes))
    numbers = {"layers": 36, "kv_heads": 8, "head_dim": 128, "block_size": 32, "width": WIDTHS[dtype]}
    assert 0 <= bytes_of("cache block", **numbers) - written <= 250
    assert [entry.size for entry in store.entries()] == [written]


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[ValkeyProcess]:
    (tmp_path / "redis").mkdir()
    server = ValkeyProcess(tmp_path / "redis")
    server.start()
    yield server
    server.kill()


def test_a_catalogued_block_takes_at_most_what_the_formula_says(redis: ValkeyProcess) -> None:
    catalog = Catalog(parse_redis_url(redis.url), "p", "tier:scope")

    async def measured() -> int:
        async with Redis.from_url(redis.url) as client:
            return await memory_of_keys(client)

    catalog.add(key(number) for number in range(FEW))
    before = asyncio.run(measured())
    catalog.add(key(number) for number in range(FEW, MANY))
    each = (asyncio.run(measured()) - before) / (MANY - FEW)
    assert 0.4 <= each / bytes_of("catalogued block") <= 1.0, each
