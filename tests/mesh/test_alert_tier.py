"""Faults of the tier of cache blocks turn its alerts on, seen by a real Prometheus; silent before each.

A doubled sampler has no tier, and no alert of these looks at anything else: a real one stands here by itself, with its
files and a catalog in a real Redis, and is scraped as a sampler is. The clock of the rules is hurried, as
tests/doubles/prometheus.py says.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from services.common.errors import CacheNotReady
from services.common.metrics_server import MetricsServer
from services.common.redis_url import parse_redis_url
from services.sampler.kv_connector.catalog import Catalog
from services.sampler.kv_connector.tier import KvTier, TierBounds
from services.sampler.kv_metrics import SAMPLER
from tests.doubles.eventually import until
from tests.doubles.prometheus import Prometheus, hurried, is_number, prometheus, required
from tests.doubles.valkey import ValkeyProcess
from tests.mesh.alerting import RULES, seen, silent
from tests.unit.sampler.kv_connector.blocks import key, payload, store
from tools import dashboard

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(280)]

BLOCKS_OF_A_LEG = 4
SEEN_SECONDS = 60.0
PAUSE_SECONDS = 0.5
PANELS = {
    f"{panel.title}: {legend}": expression.replace("$__rate_interval", "1m")
    for panel in dashboard.ROWS["KV tier"]
    for legend, expression in panel.queries.items()
}


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyProcess]:
    required("prometheus")
    made = ValkeyProcess(tmp_path_factory.mktemp("redis"))
    made.start()
    yield made
    made.resume()
    made.kill()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tier")


@pytest.fixture(scope="module")
def tier(redis: ValkeyProcess, directory: Path) -> Iterator[KvTier]:
    bounds = TierBounds(1 << 30, max_age_seconds=3600.0, wait_seconds=0.2, strict=True, collects=True)
    made = KvTier(store(directory), Catalog(parse_redis_url(redis.url), "p", "scope"), bounds)
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def server(tier: KvTier, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    place = tmp_path_factory.mktemp("prometheus")
    told = MetricsServer("127.0.0.1:0", (SAMPLER,))
    targets = place / "targets.json"
    targets.write_text(json.dumps([{"targets": [f"127.0.0.1:{told.start()}"]}]))
    with prometheus(place / "own", targets, hurried(RULES)) as made:
        until(lambda: made.scraped() == 1, SEEN_SECONDS)
        yield made
    told.stop()


class Legs:
    """One prefill leg after the other, each followed by its decode leg, as long as the block lasts."""

    def __init__(self, tier: KvTier, directory: Path) -> None:
        self.spoilt = self.forgotten = False
        self._tier, self._store = tier, store(directory)

    async def run(self) -> None:
        for number in count():
            keys = [key(f"{id(self)} {number} {block}") for block in range(BLOCKS_OF_A_LEG)]
            with suppress(CacheNotReady):
                await self._pair(f"{number}", keys)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _pair(self, name: str, keys: list[str]) -> None:
        async with self._tier.saving(f"s{name}", keys):
            for one in keys:
                self._tier.save(f"s{name}", one, payload(one))
        if self.spoilt:
            file = self._store.path(keys[0])
            file.write_bytes(file.read_bytes()[:-1] + b"!")
        if self.forgotten:
            await asyncio.to_thread(self._tier.invalidate, keys)
        async with self._tier.fetched(f"d{name}", keys):
            assert [bytes(self._tier.block(one)) for one in keys] == [payload(one) for one in keys]


@pytest.fixture
async def legs(tier: KvTier, directory: Path) -> AsyncIterator[Legs]:
    made = Legs(tier, directory)
    running = asyncio.create_task(made.run())
    yield made
    assert not running.done(), running
    running.cancel()
    await asyncio.wait([running])


async def on(server: Prometheus, alert: str) -> None:
    await asyncio.to_thread(seen, server, alert)


async def off(server: Prometheus, alert: str) -> None:
    await asyncio.to_thread(silent, server, alert)


async def test_each_panel_of_the_tier_draws_something(legs: Legs, server: Prometheus) -> None:
    def drawn() -> bool:
        return all(any(is_number(one) for one in server.query(text)) for text in PANELS.values())

    try:
        await asyncio.to_thread(until, drawn, SEEN_SECONDS)
    except AssertionError as error:
        empty = [name for name, text in PANELS.items() if not any(is_number(one) for one in server.query(text))]
        raise AssertionError(f"nothing is drawn of {empty}") from error
    for name in ("saved", "loaded"):
        assert server.query(f"rate(tinkermesh_sampler_kv_blocks_{name}_total[1m]) > 0")


@pytest.mark.parametrize(
    ("fault", "alert"),
    [("spoilt", "TinkermeshTierRefusesBlocks"), ("forgotten", "TinkermeshTierMissesBlocks")],
    ids=["damaged-on-disk", "gone-before-their-decode-leg-came"],
)
async def test_blocks_that_cannot_be_served_are_told(legs: Legs, server: Prometheus, fault: str, alert: str) -> None:
    await off(server, alert)
    setattr(legs, fault, True)
    await on(server, alert)
    setattr(legs, fault, False)
    await off(server, alert)


async def test_a_catalog_that_does_not_answer_is_told_where_nobody_samples_too(
    redis: ValkeyProcess, server: Prometheus
) -> None:
    """The tier's own upkeep asks it every two seconds."""
    await off(server, "TinkermeshTierCatalogAway")
    redis.pause()
    try:
        await on(server, "TinkermeshTierCatalogAway")
    finally:
        redis.resume()
    await off(server, "TinkermeshTierCatalogAway")
