"""Every test that names the server finds it empty: meshes of all tests are of one pool, and take over what is there."""

from __future__ import annotations

from typing import Any, cast

import pytest

from services.scheduler.store import keys
from services.scheduler.store.connection import connect
from tests.doubles.fake_trainer import POOL
from tests.doubles.valkey import ValkeyProcess


@pytest.mark.parametrize("turn", ["first", "second"])
async def test_nothing_of_another_test_is_in_redis(valkey: ValkeyProcess, turn: str) -> None:
    redis = cast("Any", connect(valkey.url))
    assert not await redis.hgetall(keys.cell(POOL))
    await redis.hset(keys.cell(POOL), "incarnation", turn)
    await redis.aclose()
