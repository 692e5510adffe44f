from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.contract.trainer.harness import Rig, local_trainer


@pytest_asyncio.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """A trainer with a stub engine and a client that drives it."""
    async with local_trainer(tmp_path) as (trainer, client):
        yield trainer, client
