"""The console put together: it reads what the other parts write."""

from __future__ import annotations

from services.scheduler.catalog.runs import TrainingRuns
from services.scheduler.console.pools import ConsolePools
from services.scheduler.console.queues import ConsoleQueues
from services.scheduler.console.runs import ConsoleRuns
from services.scheduler.console.server import Console
from services.scheduler.parts.ground import Ground
from services.scheduler.store.causes import CauseReader
from services.scheduler.store.console import ConsoleReader
from services.scheduler.store.curves import CurveReader
from services.scheduler.store.overview import Overview


def make_console(ground: Ground, owned: TrainingRuns) -> Console:
    overview, reader = Overview(ground.redis), ConsoleReader(ground.redis)
    return Console(
        runs=ConsoleRuns(owned, ground.catalog_store, reader, CurveReader(ground.redis)),
        pools=ConsolePools(overview, reader, ground.directory),
        queues=ConsoleQueues(overview),
        causes=CauseReader(ground.redis),
        overview=overview,
        directory=ground.directory,
    )
