"""How a scheduler ends: the first failure decides what is told, whatever fails while it closes (ADD-08)."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from services.common.errors import Unavailable
from services.scheduler import app
from services.scheduler.settings import Settings


class Closing:
    """An App whose parts fail as told."""

    started: Exception | None = None
    waited: Exception | None = None
    stopped: Exception | None = None
    stops = 0

    def __init__(self, settings: Settings) -> None:
        Closing.stops = 0

    async def start(self) -> int:
        if Closing.started is not None:
            raise Closing.started
        return 1

    async def wait(self, stop: asyncio.Event) -> None:
        if Closing.waited is not None:
            raise Closing.waited
        await stop.wait()

    async def stop(self) -> None:
        Closing.stops += 1
        if Closing.stopped is not None:
            raise Closing.stopped


@pytest.fixture
def closing(monkeypatch: pytest.MonkeyPatch) -> type[Closing]:
    monkeypatch.setattr(app, "App", Closing)
    monkeypatch.setattr(Closing, "started", None)
    monkeypatch.setattr(Closing, "waited", None)
    monkeypatch.setattr(Closing, "stopped", None)
    return Closing


async def ended(signals: bool = False) -> Any:
    running = asyncio.create_task(app.run(Settings(store_root="s", pepper_file="p")))
    if signals:
        await asyncio.sleep(0)
        signal.raise_signal(signal.SIGTERM)
    return await asyncio.wait_for(running, 5)


@pytest.mark.parametrize("where", ["started", "waited"])
async def test_an_error_while_closing_does_not_mask_the_first_ADD_08(
    closing: type[Closing], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(closing, where, Unavailable("the first"))
    monkeypatch.setattr(closing, "stopped", RuntimeError("a close error"))
    with pytest.raises(Unavailable, match="the first"):
        await ended()
    assert closing.stops == 1


async def test_an_error_while_closing_after_a_signal_is_the_first_ADD_08(
    closing: type[Closing], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closing, "stopped", RuntimeError("a close error"))
    with pytest.raises(RuntimeError, match="a close error"):
        await ended(signals=True)
    monkeypatch.setattr(closing, "stopped", None)
    await ended(signals=True)
    assert closing.stops == 1
