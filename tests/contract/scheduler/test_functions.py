"""The function library on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from services.common.errors import ContractViolation, Gone, Unavailable
from services.scheduler.store.connection import connect
from services.scheduler.store.functions import READERS, Functions
from services.scheduler.store.outages import reaching_redis
from tests.doubles.valkey import ValkeyProcess, free_port, single_server


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


@single_server
async def test_a_server_that_takes_no_writes_is_unavailable_not_a_bug(full_server: Redis, functions: Functions) -> None:
    with pytest.raises(Unavailable, match="takes no writes"):
        await functions.call("session_create", ["tm:{s:a}"], "tenant")
    with pytest.raises(Unavailable, match="takes no writes"):
        await functions.call_storing({"tm:{s:a}:v": b"x"}, 5, "session_create", ["tm:{s:a}"], "tenant")
    with pytest.raises(Unavailable, match="takes no writes"):
        await functions.load()


async def test_on_a_full_server_what_settles_and_what_reads_goes_on(full_server: Redis, functions: Functions) -> None:
    term = await functions.call("lease_acquire", ["tm:{p:a}"], "replica", 1_000, "life")
    assert term == [b"1"]
    assert await functions.call("unit_settle", ["tm:{p:a}"], "1", 1_000, "no-such-unit") == b"settled"
    assert (await functions.call("train_view", ["tm:{p:a}"], 10, 10))[0] == []


@single_server
async def test_every_reader_is_known_as_one_to_the_server(redis_client: Redis, functions: Functions) -> None:
    """What calls are not confirmed on disk must be what the server lets write nothing."""
    answers = await redis_client.execute_command("FUNCTION LIST", "LIBRARYNAME", functions.library.name)
    (fields,) = answers
    listed = dict(zip(fields[::2], fields[1::2], strict=True)) if isinstance(fields, list) else fields
    flags = {dict(zip(f[::2], f[1::2], strict=True))[b"name"]: f for f in listed[b"functions"]}
    reading = {name.decode().rpartition("_")[0] for name, f in flags.items() if b"no-writes" in f[-1]}
    assert reading == READERS


@single_server
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
