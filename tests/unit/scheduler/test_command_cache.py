"""The cache of admitted commands stays small on a replica that only admits."""

from typing import Any, cast

from tinkermesh.v1 import types_pb2 as types

from services.scheduler.store.commands import CommandCache, StoredCommand
from services.scheduler.store.payloads import NO_UPLOAD


def _stored(key: str) -> StoredCommand:
    return StoredCommand(key, f"p.{key}.0", "tenant", "s:train:0", types.Command(), NO_UPLOAD, "", 1)


async def test_remembered_commands_are_bounded_and_the_newest_stay():
    unreachable = cast("Any", None)  # a key that is not cached would have to be read
    cache = CommandCache(unreachable, limit=2)
    for key in ("a", "b", "c"):
        cache.remember("p", _stored(key))
    assert list(await cache.get("p", ["b", "c"])) == ["b", "c"]
    assert len(cache._found) == 2
