"""Adapters that have a place in the engine, and names that wait for one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path

from services.sampler.ports import EngineAdapter


class State(Enum):
    LOADING = auto()
    READY = auto()
    DRAINING = auto()
    """Ready, but takes no new requests: its place is wanted."""
    LEAVING = auto()


@dataclass(slots=True)
class Resident:
    """One adapter that has a place."""

    adapter: EngineAdapter
    path: str
    state: State = State.LOADING
    in_use: int = 0
    ready: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    gone: asyncio.Task[None] | None = None


@dataclass(slots=True)
class Seeker:
    """A name that waits for a place, with all its requests."""

    directory: Path
    path: str
    requests: int = 0
    turn: asyncio.Future[Resident] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
