"""What the sweeper and the leadership see to."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from pathlib import Path
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from services.common.errors import Unavailable
from services.scheduler.dispatch.sweeper import Sweeper
from services.scheduler.store import keys
from services.scheduler.store.models import ModelReader
from services.scheduler.store.payloads import FileBlobs, PayloadStore
from tests.contract.scheduler.requests import new_session
from tests.contract.scheduler.rig import Mesh, running_mesh
from tests.doubles.valkey import ValkeyProcess


async def test_rows_go_with_their_model_only_after_the_session_is_over_IDEM_06(mesh: Mesh) -> None:
    session = new_session()
    model = await mesh.opened(session)
    request = await mesh.batch(model, 1)
    await mesh.done(request)
    await mesh.done(await mesh.unload(model))
    store = mesh.replicas[0].training._driver._parts.store
    assert await store.purge("double", -1)
    assert await mesh.batch(model, 1) == request  # the session lives: a retry still finds its row
    await mesh.replicas[0].training.models.close_session("double", session, "finished", settle_accepted=True)
    while await store.purge("double", -1):
        pass
    left = await cast("Any", mesh.redis.keys("tm:{p:double}:*"))
    assert [key for key in left if model.encode() in key or b":req:" in key or b":out:" in key] == []


async def test_bases_of_many_models_are_read_at_once(redis_client: Redis) -> None:
    durable = b'{"kind": "durable", "directory": "durable/p/%d"}'
    rows = {
        "a": ("open", durable % 1),
        "b": ("closed", durable % 2),
        "c": ("open", b'{"kind": "init"}'),
        "d": ("open", ""),
    }
    for model_id, (state, base) in rows.items():
        await cast("Any", redis_client.hset(keys.model("p", model_id), mapping={"state": state, "base": base}))
    reader = ModelReader(redis_client)
    assert await reader.bases("p", [*rows, "gone"]) == ["durable/p/1", "", "", "", ""]
    assert await reader.bases("p", []) == []


async def test_a_file_of_a_command_that_was_never_admitted_is_dropped(redis_client: Redis, tmp_path: Path) -> None:
    payloads = PayloadStore(redis_client, FileBlobs(tmp_path), redis_limit=10)
    orphan = await payloads.prepare("p", "a" * 32, b"x" * 20)
    kept = await payloads.prepare("p", "b" * 32, b"x" * 20)
    await cast("Any", redis_client.hset(keys.req("p", "b" * 32), "upload", kept.upload.name))
    for file in tmp_path.iterdir():
        os.utime(file, (1, 1))
    assert await payloads.drop_orphans("p") == 1
    assert [file.name for file in tmp_path.iterdir()] == [kept.upload.name]
    assert orphan.upload.name != kept.upload.name


async def test_a_full_shared_store_is_unavailable_and_keeps_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Unavailable, match="No space left on device"):
        await FileBlobs(tmp_path).put("blob-p.k.1", b"x" * 20)
    assert list(tmp_path.iterdir()) == []


async def test_half_files_of_dead_replicas_go_too(redis_client: Redis, tmp_path: Path) -> None:
    (tmp_path / ".part-blob-p.k.1").write_bytes(b"half")
    os.utime(tmp_path / ".part-blob-p.k.1", (1, 1))
    (tmp_path / ".part-blob-p.k.2").write_bytes(b"being written")
    payloads = PayloadStore(redis_client, FileBlobs(tmp_path))
    assert await payloads.orphans("p") == [".part-blob-p.k.1"]
    assert len(list(tmp_path.iterdir())) == 2  # asking deletes nothing
    assert await payloads.drop_orphans("p") == 1
    assert [file.name for file in tmp_path.iterdir()] == [".part-blob-p.k.2"]


class Failing:
    """A leader task that dies once."""

    def __init__(self) -> None:
        self.runs = 0

    async def run(self, pool: str, term: int) -> None:
        self.runs += 1
        if self.runs == 1:
            raise RuntimeError("sweeper broke")
        await asyncio.Event().wait()


async def test_a_broken_background_task_is_logged_with_its_cause_and_started_again_FAIL_12(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failing = Failing()
    with caplog.at_level(logging.ERROR):
        async with running_mesh(valkey.url, tmp_path, leader_tasks=[failing]) as mesh:

            async def again() -> bool:
                return failing.runs > 1

            await mesh.until(again)
            model = await mesh.opened(new_session())
            await mesh.done(await mesh.batch(model, 1))
    causes = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert [str(cause) for cause in causes] == ["sweeper broke"]


async def test_a_drained_trainer_finishes_what_it_captured_and_starts_nothing(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    hold = mesh.trainer.faults.add("hold_before", "publish")
    save = await mesh.save(model, 1)

    async def captured() -> bool:
        return await mesh.state(save) == "captured"

    await mesh.until(captured)
    registration, mesh.directory.registration = mesh.directory.registration, None
    await asyncio.sleep(0.7)  # longer than the driver looks away
    batch = await mesh.batch(model, 2)
    mesh.trainer.faults.remove(hold)
    await mesh.done(save)
    assert await mesh.state(batch) == "queued"
    mesh.directory.registration = registration
    await mesh.done(batch)


async def test_the_fairness_clock_rests_with_the_pool(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    await mesh.done(await mesh.batch(model, 1))

    async def reset() -> bool:
        return not await mesh.redis.exists(keys.served("double"))

    await mesh.until(reset)


async def test_a_store_that_deletes_nothing_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "blob-p.k.1").mkdir()  # unlink refuses a directory
    with pytest.raises(Unavailable, match="shared store"):
        await FileBlobs(tmp_path).delete("blob-p.k.1")


class Upkeep:
    """The two stores a sweeper works on; the shared one is away."""

    def __init__(self) -> None:
        self.sweeps = 0

    async def expire_gaps(self, pool: str, term: int, timeout_ms: int) -> int:
        self.sweeps += 1
        return 0

    async def expire_results(self, pool: str, limit: int) -> int:
        return 0

    async def purge(self, pool: str, keep_ms: int) -> bool:
        return False

    async def repair(self, pool: str, term: int) -> int:
        return 0

    async def drop_blobs(self, pool: str) -> int:
        raise Unavailable("the shared store is away")

    async def drop(self, pool: str) -> int:
        raise Unavailable("the shared store is away")

    async def drop_orphans(self, pool: str) -> int:
        raise Unavailable("the shared store is away")


async def test_a_shared_store_that_is_away_does_not_end_the_term() -> None:
    upkeep = Upkeep()
    all_of_it = cast("Any", upkeep)
    sweeper = Sweeper(all_of_it, all_of_it, all_of_it, gap_timeout_ms=1, period_seconds=0, repair_seconds=0)
    running = asyncio.create_task(sweeper.run("p", 1))
    async with asyncio.timeout(5):
        while upkeep.sweeps < 3 and not running.done():
            await asyncio.sleep(0)
    assert not running.done()
    running.cancel()
