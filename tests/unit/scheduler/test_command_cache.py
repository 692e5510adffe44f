"""The cache of admitted commands: small on a replica that only admits, whole for whoever asks."""

from collections.abc import Callable
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


class Row:
    """A Redis with one command in every row; `meanwhile` happens while it answers."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self._meanwhile = meanwhile
        self._asked = 0

    def pipeline(self, *, transaction: bool) -> "Row":
        return self

    def hmget(self, _key: str, _fields: object) -> None:
        self._asked += 1

    async def execute(self) -> list[list[bytes]]:
        self._meanwhile()
        return [[b"p.k.0", b"tenant", b"s:train:0", b"", b"", b"0", b"", b"1", b"1"]] * self._asked


async def test_what_is_asked_for_is_answered_also_when_it_leaves_the_cache_meanwhile():
    """A command that is left out would let its model's next one overtake it."""
    cache = CommandCache(cast("Any", Row(lambda: cache.remember("p", _stored("other")))), limit=2)
    for key in ("a", "b"):
        cache.remember("p", _stored(key))
    assert list(await cache.get("p", ["a", "b", "c"])) == ["a", "b", "c"]
