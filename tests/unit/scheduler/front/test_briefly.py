"""Values remembered for a moment."""

from __future__ import annotations

import asyncio

import pytest

from services.common.errors import Unavailable
from services.scheduler.briefly import Briefly


async def test_concurrent_questions_share_one_read() -> None:
    reads = 0

    async def read() -> int:
        nonlocal reads
        reads += 1
        await asyncio.sleep(0)
        return reads

    value = Briefly(read, 60.0)
    assert await asyncio.gather(*(value.get() for _ in range(10))) == [1] * 10
    value.forget()
    assert await value.get() == 2


async def test_a_value_grows_old() -> None:
    answers = iter("ab")

    async def read() -> str:
        return next(answers)

    value = Briefly(read, 0.0)
    assert await value.get() == "a"
    await asyncio.sleep(0.01)
    assert await value.get() == "b"


async def test_a_failure_is_not_remembered() -> None:
    failing = True

    async def read() -> str:
        if failing:
            raise Unavailable("away")
        return "here"

    value = Briefly(read, 60.0)
    with pytest.raises(Unavailable):
        await value.get()
    failing = False
    assert await value.get() == "here"


async def test_what_was_read_before_a_change_is_not_remembered_after_it() -> None:
    answers = iter(["before", "after"])
    reading, go_on = asyncio.Event(), asyncio.Event()

    async def read() -> str:
        answer = next(answers)
        reading.set()
        await go_on.wait()
        return answer

    value = Briefly(read, 60.0)
    early = asyncio.create_task(value.get())
    await reading.wait()
    value.forget()
    go_on.set()
    assert await early == "before"
    assert await value.get() == "after"
