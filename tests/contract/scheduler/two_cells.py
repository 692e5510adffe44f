"""The training path on a pool of two trainers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

from services.common.cells import FIRST_CELL
from services.scheduler.store import keys
from tests.contract.scheduler.recovering import fields, phase
from tests.contract.scheduler.requests import new_session
from tests.contract.scheduler.rig import Mesh
from tests.doubles.fake_trainer import POOL, FakeTrainer

SECOND = "1"


class TwoCells(Mesh):
    """`trainer` is that of the first cell, `second` that of the other."""

    def __init__(self, url: str, root: Path, **options: Any) -> None:
        super().__init__(url, root, **options)
        self.second = self._new_second()

    def _new_second(self) -> FakeTrainer:
        return FakeTrainer(self.root, facts=self.facts, cell=SECOND)

    async def start(self, *, replicas: int = 1) -> None:
        await self.start_second()
        await super().start(replicas=replicas)

    async def start_second(self) -> None:
        await self.second.start()
        self.directory.others[SECOND] = self.second.registration()
        await self.changed()

    async def changed(self) -> None:
        """What a registration or a drain tells the leader."""
        await cast("Any", self.redis.publish(keys.ready_channel(POOL), "trainer"))

    async def drain_second(self) -> None:
        self.directory.drained.add(SECOND)
        await self.changed()

    def silence_second(self) -> FakeTrainer:
        """It registers no more, and goes on as it is: nobody knows whether it lives."""
        self.directory.others[SECOND] = None
        return self.second

    async def kill_second(self) -> None:
        self.silence_second()
        await self.changed()
        await self.second.stop()

    async def next_second(self) -> None:
        """A new incarnation registers."""
        self.second = self._new_second()
        await self.start_second()

    async def stop(self) -> None:
        await super().stop()
        await self.second.stop()

    async def cell_of(self, model: str) -> str:
        return (await fields(self, model, "cell"))[0] or FIRST_CELL

    async def cells_of(self, models: Sequence[str]) -> list[str]:
        return [await self.cell_of(model) for model in models]

    async def six(self) -> list[str]:
        """Six open models, by cell: three of the first, three of the second."""
        session = new_session()
        models = [await self.opened(session, number) for number in range(6)]
        return sorted(models, key=(await self.by_model(models)).__getitem__)

    async def by_model(self, models: Sequence[str]) -> dict[str, str]:
        return dict(zip(models, await self.cells_of(models), strict=True))

    async def held(self, cell: str) -> set[str]:
        """Who holds slots of a cell."""
        found = await cast("Any", self.redis.hvals(keys.slots(POOL, cell)))
        return {holder.decode() for holder in found if holder}

    async def moved(self, models: Sequence[str], cell: str) -> None:
        """Until all of them live there."""

        async def there() -> bool:
            return set(await self.cells_of(models)) == {cell}

        await self.until(there)

    async def live_at(self, models: Sequence[str], cell: str) -> None:
        await self.moved(models, cell)

        async def all_live() -> bool:
            return {await phase(self, model) for model in models} == {"live"}

        await self.until(all_live)


@contextlib.asynccontextmanager
async def two_cells(url: str, root: Path, *, replicas: int = 1, **options: Any) -> AsyncIterator[TwoCells]:
    mesh = TwoCells(url, root, **options)
    await mesh.start(replicas=replicas)
    try:
        yield mesh
    finally:
        await mesh.stop()
