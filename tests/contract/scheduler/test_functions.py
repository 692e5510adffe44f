"""The function library on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from services.common.errors import ContractViolation, Gone, Unavailable
from services.scheduler.store.connection import connect
from services.scheduler.store.functions import Functions
from services.scheduler.store.outages import reaching_redis
from tests.doubles.valkey import ValkeyProcess, free_port


async def test_library_is_loaded_again_after_the_server_lost_it(redis_client: Redis, functions: Functions) -> None:
    await redis_client.function_flush()
    assert await functions.call("ping", ["tm:{p:a}"]) == b"pong"


async def test_library_may_be_loaded_twice(functions: Functions) -> None:
    await functions.load()
    assert await functions.call("ping", ["tm:{p:a}"]) == b"pong"


async def test_an_unknown_function_is_a_bug_not_a_loop(functions: Functions) -> None:
    with pytest.raises(ContractViolation, match="no_such"):
        await functions.call("no_such", [])


async def test_an_absent_server_is_unavailable() -> None:
    client = connect(f"redis://127.0.0.1:{free_port()}/0")
    with pytest.raises(Unavailable, match="Redis is away"):
        await Functions(client).call("ping", ["tm:{p:a}"])
    await client.aclose()


async def test_functions_and_data_survive_a_killed_server(valkey: ValkeyProcess, redis_client: Redis) -> None:
    functions = Functions(redis_client)
    await functions.load()
    await redis_client.set("k", "v")
    valkey.kill()
    valkey.start()
    assert await redis_client.get("k") == b"v"
    assert await functions.call("ping", ["tm:{p:a}"]) == b"pong"


async def test_a_refusal_behind_stored_values_keeps_its_own_text(functions: Functions) -> None:
    """The client library's own wrapping of a pipeline's error would end up before the client."""
    alone = "session is not known to this mesh, or expired long ago"
    with pytest.raises(Gone) as refused:
        await functions.call_storing({"tm:{s:a}:v": b"x"}, 5, "session_beat", ["tm:{s:a}"], "tenant")
    assert refused.value.message == alone


async def test_a_repeat_after_a_lost_reply_gives_kept_values_no_end_again(
    redis_client: Redis, functions: Functions
) -> None:
    """The client library sends a whole pipeline again; the function has kept the values the first time."""
    name = "tm:{p:a}:v"
    await functions.call_storing({name: b"x"}, 5, "ping", ["tm:{p:a}"])
    await redis_client.persist(name)
    await functions.call_storing({name: b"x"}, 5, "ping", ["tm:{p:a}"])
    assert await redis_client.ttl(name) == -1


@pytest.fixture
async def full_server(redis_client: Redis, functions: Functions) -> AsyncIterator[Redis]:
    """It answers every write with an error."""
    await functions.load()
    await redis_client.config_set("maxmemory", 1)
    yield redis_client
    await redis_client.config_set("maxmemory", 0)


async def test_a_server_that_takes_no_writes_is_unavailable_not_a_bug(full_server: Redis, functions: Functions) -> None:
    with pytest.raises(Unavailable, match="takes no writes"):
        await functions.call("ping", ["tm:{p:a}"])
    with pytest.raises(Unavailable, match="takes no writes"):
        await functions.call_storing({"tm:{p:a}:v": b"x"}, 5, "ping", ["tm:{p:a}"])
    with pytest.raises(Unavailable, match="takes no writes"):
        await functions.load()


async def test_plain_writes_to_a_full_server_are_unavailable_too(full_server: Redis) -> None:
    with pytest.raises(Unavailable, match="takes no writes"), reaching_redis():
        await full_server.set("k", "v")
    with pytest.raises(Unavailable, match="takes no writes"), reaching_redis():
        await full_server.pipeline(transaction=False).set("k", "v").execute()


def test_a_server_that_cannot_write_its_file_is_unavailable_other_errors_are_not() -> None:
    with pytest.raises(Unavailable), reaching_redis():
        raise ResponseError("MISCONF Errors writing to the AOF file: No space left on device")
    with pytest.raises(ResponseError), reaching_redis():
        raise ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value")
