"""Generations at the desk: whatever meets whatever, one that is over is counted no more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from services.common.errors import Busy, Unavailable
from services.scheduler.generating.desk import GenerationDesk
from services.scheduler.store.generations import Held
from services.scheduler.tenancy.records import Quotas
from tests.doubles.eventually import eventually

HELD = Held("double", "tenant-alice", "g", 1)


class Book:
    """store.GenerationStore without Redis. `gate` holds an admission or a renewal back once it has been written."""

    def __init__(self) -> None:
        self.counted: set[Held] = set()
        self.ended: list[Held] = []
        self.gate: asyncio.Event | None = None
        self.waiting = False
        self.refusal: Busy | Unavailable | None = None

    async def admit(self, held: Held, most_samples: int, limits: str) -> None:
        if isinstance(self.refusal, Busy):
            raise self.refusal
        self.counted.add(held)
        await self._answered()
        if self.refusal is not None:
            raise self.refusal

    async def renew(self, pool: str, tenant_id: str, generations: Iterable[Held]) -> None:
        await self._answered()
        self.counted.update(generations)

    async def end(self, held: Held) -> None:
        self.ended.append(held)
        self.counted.discard(held)

    async def _answered(self) -> None:
        if self.gate is not None:
            self.waiting = True
            await self.gate.wait()


def desk_of(book: Book) -> GenerationDesk:
    store: Any = book
    return GenerationDesk(store, lambda _tenant: Quotas())


async def generated(desk: GenerationDesk, end: asyncio.Event) -> None:
    async with desk.admitted(HELD):
        await end.wait()


async def test_one_that_ends_beside_its_renewal_is_not_brought_back_by_it() -> None:
    book, end = Book(), asyncio.Event()
    desk = desk_of(book)
    work = asyncio.create_task(generated(desk, end))
    await eventually(lambda: desk.open)
    book.gate = asyncio.Event()
    renewal = asyncio.create_task(desk.renew())
    await eventually(lambda: book.waiting)
    end.set()
    await work
    assert book.counted == set()
    book.gate.set()
    await renewal
    assert book.counted == set()


async def test_one_whose_client_goes_while_it_is_admitted_is_given_back() -> None:
    book = Book()
    desk, book.gate = desk_of(book), asyncio.Event()
    work = asyncio.create_task(generated(desk, asyncio.Event()))
    await eventually(lambda: book.waiting)
    while not work.done():  # again and again, as who ends a generation does
        work.cancel()
        await asyncio.sleep(0)
    assert book.ended == [] and work.cancelled()
    book.gate.set()
    await eventually(lambda: book.ended == [HELD])
    assert book.counted == set() and desk.open == 0


async def test_one_whose_admission_was_not_answered_is_given_back() -> None:
    book = Book()
    book.refusal = Unavailable("Redis is away")
    with pytest.raises(Unavailable):
        await generated(desk_of(book), asyncio.Event())
    assert book.ended == [HELD] and book.counted == set()


async def test_one_that_was_refused_ends_nothing() -> None:
    book = Book()
    book.refusal = Busy("quota samples")
    with pytest.raises(Busy):
        await generated(desk_of(book), asyncio.Event())
    assert book.ended == []
