"""What Redis must be in each durability, and how a write is confirmed (GAP-16)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from services.common.errors import InvalidInput, Unavailable
from services.scheduler.startup_checks import check_redis
from services.scheduler.store.connection import Redis, connect
from services.scheduler.store.durability import Confirmation, check_waitaof, confirmation
from services.scheduler.store.functions import Functions
from tests.doubles.eventually import eventually
from tests.doubles.valkey import ValkeyProcess

ALWAYS = {"appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "no"}
EVERYSEC = {**ALWAYS, "appendfsync": "everysec"}


async def test_redis_that_may_lose_work_is_refused_with_the_remedy(own_valkey: ValkeyProcess) -> None:
    async with connect(own_valkey.url) as client:
        for name, value, good in (
            ("maxmemory-policy", "allkeys-lru", "noeviction"),
            ("appendfsync", "no", "always"),
            ("appendonly", "no", "yes"),
        ):
            assert await check_redis(client, "strict") is None
            await client.config_set(name, value)
            with pytest.raises(InvalidInput, match=f"{name} {value}.*set.*{name} {good}"):
                await check_redis(client, "strict")
            if name != "maxmemory-policy":
                await check_redis(client, "off")
            await client.config_set(name, good)


async def test_a_waitaof_that_answers_before_the_sync_is_not_trusted(own_valkey: ValkeyProcess) -> None:
    """This server has the fault: a write is confirmed while the AOF still waits for its sync."""
    async with connect(own_valkey.url) as client:
        await client.config_set("appendfsync", "everysec")
        assert await check_redis(client, "everysec") is None
        with pytest.raises(InvalidInput, match="WAITAOF answers before the disk has the write: set appendfsync always"):
            await check_redis(client, "strict")
        await client.config_set("no-appendfsync-on-rewrite", "yes")
        with pytest.raises(InvalidInput, match="no-appendfsync-on-rewrite"):
            await check_redis(client, "strict")


class SlowPipe:
    """A server that syncs once a second."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def pipeline(self, transaction: bool) -> SlowPipe:
        return self

    def set(self, *_: Any, **__: Any) -> None: ...

    def execute_command(self, *_: Any) -> None: ...

    async def execute(self) -> None:
        await asyncio.sleep(self._seconds)


async def test_a_waitaof_that_takes_the_time_of_the_syncs_is_trusted() -> None:
    await check_waitaof(cast("Redis", SlowPipe(0.31)))
    with pytest.raises(InvalidInput):
        await check_waitaof(cast("Redis", SlowPipe(0.1)))  # answered by the next tick of the server's clock


@pytest.mark.parametrize(
    ("settings", "durability", "replicas", "waitaof", "expected"),
    [
        (ALWAYS, "strict", 0, False, None),
        (ALWAYS, "strict", 2, False, Confirmation(False, 2)),
        (EVERYSEC, "everysec", 1, True, Confirmation(False, 1)),
        (EVERYSEC, "strict", 1, True, Confirmation(True, 1)),
        (EVERYSEC, "strict", 0, False, "no WAITAOF"),
        ({**ALWAYS, "appendonly": "no"}, "everysec", 0, True, "appendfsync everysec"),
        ({"appendonly": "no"}, "off", 0, False, None),
    ],
)
def test_how_writes_are_confirmed(
    settings: dict[str, str], durability: Any, replicas: int, waitaof: bool, expected: Confirmation | str | None
) -> None:
    if isinstance(expected, str):
        with pytest.raises(InvalidInput, match=expected):
            confirmation(settings, durability, replicas=replicas, waitaof=waitaof)
    else:
        assert confirmation(settings, durability, replicas=replicas, waitaof=waitaof) == expected


@pytest.fixture
def replica(own_valkey: ValkeyProcess, tmp_path: Path) -> Iterator[ValkeyProcess]:
    directory = tmp_path / "replica"
    directory.mkdir()
    server = ValkeyProcess(directory, replicaof=f"127.0.0.1 {own_valkey.port}")
    server.start()
    yield server
    server.kill()


async def replicating(client: Redis) -> bool:
    known = (await client.info("replication")).get("slave0", {})
    return bool(known.get("state") == "online")


async def test_a_confirmed_write_is_on_the_replica_a_stopped_replica_stops_the_answers(
    own_valkey: ValkeyProcess, replica: ValkeyProcess
) -> None:
    """GAP-16: what a failover could forget is not acknowledged."""
    async with connect(own_valkey.url) as client:
        await eventually(lambda: replicating(client))
        functions = Functions(client)
        await functions.load()
        functions.confirmation = Confirmation(False, 1, timeout_ms=5_000)
        await functions.call("tenant_session", ["tm:{t:a}:sessions", "tm:{t:a}:k"], "s1", 90_000, 0)
        async with connect(replica.url) as copy:
            assert await copy.get("tm:{t:a}:k") == b"s1"
        replica.pause()
        functions.confirmation = Confirmation(False, 1, timeout_ms=100)
        with pytest.raises(Unavailable, match="not on 1 replicas yet; send the request again"):
            await functions.call("tenant_session", ["tm:{t:b}:sessions", "tm:{t:b}:k"], "s1", 90_000, 0)
        with pytest.raises(Unavailable, match="not on 1 replicas"):  # on whatever connection: the repeat waits, too
            await asyncio.gather(*(repeat(functions) for _ in range(4)))
        assert await functions.call("ping", ["tm:{s:a}"]) == b"pong"  # reading waits for nothing
        replica.resume()
        functions.confirmation = Confirmation(False, 1, timeout_ms=5_000)
        assert await repeat(functions) == b"s1"


async def repeat(functions: Functions) -> Any:
    return await functions.call("tenant_session", ["tm:{t:b}:sessions", "tm:{t:b}:k"], "s2", 90_000, 0)


async def test_a_write_without_its_replica_is_unavailable(own_valkey: ValkeyProcess) -> None:
    async with connect(own_valkey.url) as client:
        functions = Functions(client)
        await functions.load()
        functions.confirmation = Confirmation(False, 1, timeout_ms=50)
        with pytest.raises(Unavailable, match="not on 1 replicas yet"):
            await functions.call("session_create", ["tm:{s:a}"], "t")


async def test_while_redis_is_not_fit_nothing_is_written(redis_client: Redis, functions: Functions) -> None:
    functions.refusal = "this mesh takes no work now"
    with pytest.raises(Unavailable, match="takes no work now"):
        await functions.call("session_create", ["tm:{s:a}"], "t")
    assert await functions.call("ping", ["tm:{s:a}"]) == b"pong"
    functions.refusal = ""
    assert await functions.call("session_create", ["tm:{s:a}"], "t")
