"""A sampler that is gone: what waits for it is told so, instead of ending as if it had been cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, cast

import pytest
from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1 import scheduler_pb2
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import Unavailable
from services.scheduler.sampling.link import SamplerLink


class Silent:
    """A sampler whose machine went away: calls stay open."""

    def __init__(self) -> None:
        self.calls: list[asyncio.Future[Any]] = []

    def _call(self, _request: object, *, timeout: float) -> Awaitable[Any]:
        self.calls.append(asyncio.get_running_loop().create_future())
        return self.calls[-1]

    LoadAdapter = Sample = _call


async def silent_link() -> tuple[SamplerLink, Silent]:
    registration = scheduler_pb2.RegisterSamplerRequest(sampler_id="a", incarnation="1", address="127.0.0.1:1")
    link, sampler = SamplerLink(registration, load_seconds=60.0), Silent()
    link._stub = cast("Any", sampler)
    return link, sampler


def work(link: SamplerLink, kind: str) -> Awaitable[object]:
    if kind == "load":
        return link.load(types.AdapterRef(name="m@1", path="p"))
    return link.sample(pb.SampleRequest(request_id="r"), 60.0)


@pytest.mark.parametrize("kind", ["load", "sample"])
async def test_what_waits_for_a_closed_link_may_go_elsewhere_SAMP_10(kind: str) -> None:
    link, sampler = await silent_link()
    waiting = asyncio.ensure_future(work(link, kind))
    while not sampler.calls:
        await asyncio.sleep(0)
    await link.close()
    sampler.calls[0].cancel()  # as a closed channel does
    with pytest.raises(Unavailable, match="sampler a"):
        await asyncio.wait_for(waiting, 5)


@pytest.mark.parametrize("kind", ["load", "sample"])
async def test_a_closed_link_takes_no_work(kind: str) -> None:
    link, sampler = await silent_link()
    await link.close()
    with pytest.raises(Unavailable, match="sampler a"):
        await work(link, kind)
    assert sampler.calls == []


@pytest.mark.parametrize("kind", ["load", "sample"])
async def test_a_cancelled_sample_ends_as_cancelled(kind: str) -> None:
    link, sampler = await silent_link()
    waiting = asyncio.ensure_future(work(link, kind))
    while not sampler.calls:
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await link.close()
