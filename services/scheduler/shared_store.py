"""Work on files of the shared store: in threads, since it may be remote, and with its outages as one typed error."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from services.common.errors import MissingResource, Unavailable

P = ParamSpec("P")
T = TypeVar("T")


async def in_store(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """What `work` answers or raises; Unavailable while the store is away, MissingResource for files that went."""
    try:
        return await asyncio.to_thread(work, *arguments, **named)
    except FileNotFoundError as error:
        raise MissingResource("the checkpoint does not exist any more: it was deleted a moment ago") from error
    except OSError as error:
        cause = os.strerror(error.errno) if error.errno else type(error).__name__
        raise Unavailable(f"the shared store cannot be used now ({cause})") from error
