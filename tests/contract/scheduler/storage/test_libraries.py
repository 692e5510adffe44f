"""Two releases on one Redis: side by side during a rolling upgrade, never backwards."""

from __future__ import annotations

from pathlib import Path
from shutil import copytree

import pytest

from services.common.errors import InvalidInput
from services.scheduler.store import keys
from services.scheduler.store.connection import Redis
from services.scheduler.store.functions import FUNCTIONS, LAYOUT, Functions, library
from services.scheduler.store.libraries import LibraryShelf


@pytest.fixture
async def newer(redis_client: Redis, tmp_path: Path) -> Functions:
    """The next release: one function answers differently."""
    directory = copytree(FUNCTIONS, tmp_path / "functions")
    common = directory / "_common.lua"
    common.write_text(common.read_text().replace("return 'pong'", "return 'pong of the next release'"))
    functions = Functions(redis_client, library(directory))
    await functions.load()
    return functions


async def test_old_and_new_replicas_work_side_by_side(functions: Functions, newer: Functions) -> None:
    assert functions.library.name != newer.library.name
    assert functions.library.name.startswith(f"tinkermesh_{LAYOUT}_")
    for _ in range(2):
        assert await functions.call("ping", ["tm:{p:a}"]) == b"pong"
        assert await newer.call("ping", ["tm:{p:a}"]) == b"pong of the next release"
        await functions.load()  # an old replica that starts again replaces nothing


async def test_old_and_new_functions_work_on_the_same_rows(functions: Functions, newer: Functions) -> None:
    term = (await functions.call("lease_acquire", ["tm:{p:a}"], "old", 60_000, "life"))[0]
    assert (await newer.call("lease_acquire", ["tm:{p:a}"], "new", 60_000, "other"))[1] == b"old"
    assert await newer.call("lease_renew", ["tm:{p:a}"], term, "life", 60_000) == 1


async def test_both_lose_their_functions_and_both_go_on(
    redis_client: Redis, functions: Functions, newer: Functions
) -> None:
    await redis_client.function_flush()
    assert await newer.call("ping", ["tm:{p:a}"]) == b"pong of the next release"
    assert await functions.call("ping", ["tm:{p:a}"]) == b"pong"


async def test_a_library_goes_when_no_replica_has_used_it_for_long(
    redis_client: Redis, functions: Functions, newer: Functions
) -> None:
    old, new = LibraryShelf(redis_client, functions, "old"), LibraryShelf(redis_client, newer, "new")
    await old.beat()
    await new.beat()
    assert await new.drop_unused() == []
    await redis_client.zadd(keys.LIBRARIES, {functions.library.name: 1})  # its last beat is long ago
    assert await new.drop_unused() == [functions.library.name]
    assert await old.drop_unused() == []  # the new one is in use
    assert await functions.call("ping", ["tm:{p:a}"]) == b"pong"  # a late old replica loads it again


async def test_an_unknown_library_is_left_alone_for_its_first_day(
    redis_client: Redis, functions: Functions, newer: Functions
) -> None:
    shelf = LibraryShelf(redis_client, functions, "old")
    assert await shelf.drop_unused() == []
    assert await shelf.drop_unused(keep_ms=-1) == [newer.library.name]


async def test_an_older_layout_never_comes_back(redis_client: Redis, functions: Functions) -> None:
    await LibraryShelf(redis_client, functions, "new", layout=LAYOUT + 1).beat()
    with pytest.raises(InvalidInput, match=f"newer release has written layout {LAYOUT + 1}"):
        await LibraryShelf(redis_client, functions, "old").beat()


async def test_a_newer_layout_waits_until_the_old_replicas_are_gone(redis_client: Redis, functions: Functions) -> None:
    old = LibraryShelf(redis_client, functions, "old")
    new = LibraryShelf(redis_client, functions, "new", layout=LAYOUT + 1)
    await old.beat()
    with pytest.raises(InvalidInput, match="replica old of an older layout still works"):
        await new.beat()
    await old.beat()  # nothing was claimed
    await old.leave()
    await new.beat()


async def test_a_replica_may_come_back_newer_under_its_name_at_once(redis_client: Redis, functions: Functions) -> None:
    await LibraryShelf(redis_client, functions, "scheduler-0").beat()
    await LibraryShelf(redis_client, functions, "scheduler-0", layout=LAYOUT + 1).beat()
