"""The application behind real HTTP, and the unmodified openai client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import msgspec
import openai
import pytest
import uvicorn

from services.gateway.app import create_app
from services.gateway.connection import Connection
from services.gateway.settings import Settings
from tests.contract.gateway.conftest import KEY, OTHER_KEY, no_traceback, scheduler, settings, tenants
from tests.contract.gateway.fake_completions import FakeCompletions
from tests.contract.gateway.fake_scheduler import FakeScheduler
from tests.contract.gateway.submitted import BASE_MODEL

__all__ = ["no_traceback", "scheduler", "settings", "tenants"]


@dataclass
class Served:
    """Clients of a gateway at a port: of the first tenant and of the other one."""

    client: openai.AsyncOpenAI
    other: openai.AsyncOpenAI
    http: httpx.AsyncClient

    async def said(self, **body: Any) -> openai.types.Completion:
        return await self.client.completions.create(**{"model": BASE_MODEL, "prompt": "Hi", "max_tokens": 99, **body})

    async def chat(self, **body: Any) -> Any:
        messages: Any = [{"role": "user", "content": "Hi"}]
        return await self.client.chat.completions.create(**{"model": BASE_MODEL, "messages": messages, **body})

    async def events(self, route: str, **body: Any) -> tuple[list[Any], bool]:
        """(events of a raw stream, whether it ended with [DONE]); comments are left out."""
        async with self.http.stream("POST", route, json={"model": BASE_MODEL, "stream": True, **body}) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream"), await answer.aread()
            raw = await answer.aread()
        assert raw.endswith(b"\n\n")
        lines = [block.removeprefix(b"data: ") for block in raw.split(b"\n\n") if block.startswith(b"data: ")]
        done = lines[-1:] == [b"[DONE]"]
        return [msgspec.json.decode(line) for line in (lines[:-1] if done else lines)], done


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[Served]:
    http = partial(Connection, header_seconds=settings.header_timeout_seconds)
    config = uvicorn.Config(create_app(settings), port=0, http=http, ws="none", lifespan="on", log_config=None)
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    ticking = asyncio.create_task(server.main_loop())
    root = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    made: Any = partial(openai.AsyncOpenAI, base_url=f"{root}/oai/api/v1", max_retries=0, timeout=30)
    headers = {"authorization": f"Bearer {KEY}"}
    try:
        async with (
            made(api_key=KEY) as client,
            made(api_key=OTHER_KEY) as other,
            httpx.AsyncClient(base_url=f"{root}/oai/api/v1", headers=headers, timeout=30, trust_env=False) as raw,
        ):
            yield Served(client, other, raw)
    finally:
        server.should_exit = True
        await ticking
        await server.shutdown()


@pytest.fixture
async def served(settings: Settings) -> AsyncIterator[Served]:
    async with serving(settings) as running:
        yield running


@pytest.fixture
def completions(scheduler: FakeScheduler) -> FakeCompletions:
    return scheduler.completions
