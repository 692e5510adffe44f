"""When the consistency check runs, and by whom."""

from __future__ import annotations

import msgspec
import pytest

from services.common.errors import Unavailable
from services.scheduler.checkup import Checkup
from services.scheduler.store import keys
from services.scheduler.store.consistency import Finding
from tests.contract.scheduler.storage.test_consistency import PLANTED, Site, no, site, yes
from tests.contract.scheduler.test_training_functions import POOL

__all__ = ["site"]


async def test_the_check_runs_once_for_each_life_of_the_server_and_for_who_starts_alone(site: Site) -> None:
    await site.redis.sadd(keys.POOLS, POOL)
    checkup = Checkup(site.redis, site.functions, site.check, "me")
    plant = PLANTED["row_without_id"]
    await plant(site)
    assert [one.kind for one in await checkup.run(no)] == ["row_without_id"]
    await plant(site)
    assert await checkup.run(no) == []
    assert len(await checkup.run(yes)) == 1
    report = msgspec.json.decode(await site.redis.hget(keys.CHECKUP, "report"))
    assert report == {"replica": "me", "findings": {"row_without_id": 1}}
    await site.redis.hset(keys.CHECKUP, "life", "another server's")
    await plant(site)
    await site.redis.set(keys.CHECKUP_LOCK, "other", px=60_000)
    assert await checkup.run(yes) == []  # another replica is at it
    await site.redis.delete(keys.CHECKUP_LOCK)
    assert len(await checkup.run(no)) == 1


async def test_a_check_that_was_overtaken_leaves_lock_and_report_to_the_other(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock ran out in its middle."""
    whole = site.check.sessions

    async def taken_over() -> list[Finding]:
        await site.redis.set(keys.CHECKUP_LOCK, "other 1", px=60_000)
        return await whole()

    monkeypatch.setattr(site.check, "sessions", taken_over)
    await site.redis.hset(keys.CHECKUP, mapping={"life": "other's", "report": "other's"})
    await Checkup(site.redis, site.functions, site.check, "me").run(no)
    assert await site.redis.get(keys.CHECKUP_LOCK) == b"other 1"
    assert await site.redis.hgetall(keys.CHECKUP) == {b"life": b"other's", b"report": b"other's"}


@pytest.mark.parametrize(("holder", "left"), [(None, None), ("other 1", b"other 1")])
async def test_a_check_that_breaks_gives_up_its_own_lock_only(
    site: Site, monkeypatch: pytest.MonkeyPatch, holder: str | None, left: bytes | None
) -> None:
    async def breaks() -> list[Finding]:
        if holder is not None:
            await site.redis.set(keys.CHECKUP_LOCK, holder, px=60_000)
        raise Unavailable("Redis is away")

    monkeypatch.setattr(site.check, "sessions", breaks)
    with pytest.raises(Unavailable):
        await Checkup(site.redis, site.functions, site.check, "me").run(no)
    assert await site.redis.get(keys.CHECKUP_LOCK) == left
