"""Adapters are loaded explicitly, everywhere they may be needed, before anything is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from tinkermesh.v1 import types_pb2 as types

from services.common.errors import ServerError, TinkermeshError
from services.scheduler.sampling.link import SamplerLink


async def loaded(link: SamplerLink, adapter: types.AdapterRef | None, end: float) -> None:
    """Returns when the sampler has acknowledged the adapter, `end` (loop time) at the latest.

    Raises what it said, naming the stage and the sampler; ServerError past `end`.
    """
    if adapter is None:
        return
    stage = f"stage 'load adapter': {adapter.name} on {link.named}"
    try:
        async with asyncio.timeout_at(end):
            await link.load(adapter)
    except TimeoutError:
        raise ServerError(f"{stage}: it was not loaded in time") from None
    except TinkermeshError as error:
        raise type(error)(f"{stage}: {error.message}") from error


async def all_loaded(
    links: Sequence[SamplerLink], adapter: types.AdapterRef | None, end: float
) -> Mapping[SamplerLink, TinkermeshError]:
    """Empty when every one has acknowledged the adapter; else as soon as one fails, why."""
    loads = {asyncio.create_task(loaded(link, adapter, end)): link for link in links}
    try:
        await asyncio.wait(loads, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for load in loads:
            load.cancel()
        outcomes = await asyncio.gather(*loads, return_exceptions=True)
    return {
        link: outcome
        for link, outcome in zip(loads.values(), outcomes, strict=True)
        if isinstance(outcome, TinkermeshError)
    }
