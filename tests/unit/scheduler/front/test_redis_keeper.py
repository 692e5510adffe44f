"""After a reconnection Redis is checked again, as often as it takes, and not more often than that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.common.errors import InvalidInput
from services.scheduler import redis_keeper
from services.scheduler.redis_keeper import RedisKeeper
from services.scheduler.settings import Settings


class Functions:
    refusal = ""
    confirmation = None
    library = SimpleNamespace(name="tinkermesh_1_x")

    async def load(self) -> None:
        return

    async def call(self, *_arguments: object) -> list[bytes]:
        return [b"ok", b""]


def keeper(check: Callable[[], None]) -> RedisKeeper:
    """Just reconnected; `check` happens at each look at Redis' settings."""
    notices = SimpleNamespace(on_reconnect=lambda _callback: None)
    made = RedisKeeper(cast("Any", None), cast("Any", Functions()), Settings("store", "pepper"), cast("Any", notices))

    async def looked() -> None:
        check()

    async def checked_up(_alone: object) -> None:
        return

    cast("Any", made)._check, cast("Any", made)._checkup = looked, SimpleNamespace(run=checked_up)
    return made


async def running(made: RedisKeeper, seconds: float) -> None:
    task = asyncio.create_task(made.run())
    await asyncio.sleep(0)  # it forgets what came before it began
    made._reconnected.set()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(task, seconds)


async def test_a_server_that_is_not_fit_is_not_asked_without_a_pause() -> None:
    looks = 0

    def unfit() -> None:
        nonlocal looks
        looks += 1
        raise InvalidInput("appendonly no")

    made = keeper(unfit)
    await running(made, 0.5)
    assert looks == 1
    assert made._functions.refusal


async def test_an_unfit_server_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_keeper, "RETRY_SECONDS", 0.05)
    answers = iter([True, True])

    def fit_at_last() -> None:
        if next(answers, False):
            raise InvalidInput("appendonly no")

    made = keeper(fit_at_last)
    await running(made, 0.5)
    assert made._functions.refusal == ""


async def test_a_reconnection_during_the_look_is_looked_at_too() -> None:
    looks = 0

    def reconnecting() -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            made._reconnected.set()

    made = keeper(reconnecting)
    await running(made, 0.5)
    assert looks == 2
