"""Requests through the whole gateway application: every POST route, with a scheduler that accepts everything."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
from starlette.routing import Route

from services.common.keyring import Keyring, load_pepper
from services.gateway.settings import Settings
from tests.contract.gateway.conftest import running
from tests.contract.gateway.fake_jobs import JOB_ID
from tests.contract.gateway.fake_scheduler import FakeScheduler
from tests.contract.gateway.test_fuzz import good_bodies, openai_bodies
from tests.contract.gateway.wire_forms import to_protobuf, to_zstd
from tests.fuzz.structured import json_or_bytes, protobuf_or_bytes, zstd_or_bytes
from tests.fuzz.targets import GATEWAY, Finding, Target

KEY = "tml-fuzz"
NEVER = (402, 409)  # the SDK waits for minutes or an hour
PROTOBUF = {"content-type": "application/x-protobuf"}
ENCODINGS = ({}, PROTOBUF, {**PROTOBUF, "content-encoding": "zstd"})
CHANGES = (json_or_bytes, protobuf_or_bytes, zstd_or_bytes)
IN_PATHS = {
    "session_id": "00000000-0000-4000-8000-000000000000",
    "run_id": "x",
    "kind": "weights",
    "name": "x",
    "checkpoint_id": "weights/x",
    "job_id": JOB_ID,
}


_CONTINUED = {"continue_from": {"job_id": JOB_ID, "index": 0, "sample_index": 0}, "lora_path": None, "temperature": 0}


@contextmanager
def http() -> Iterator[Target]:
    """Data is `<route number> <encoding number> <body>`; the routes are those the application has."""
    loop = asyncio.new_event_loop()
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp())
        stack.callback(shutil.rmtree, folder)
        pepper = load_pepper(folder / "pepper", create=True)
        tenant = Keyring(folder / "keys", pepper).add(KEY)
        scheduler = FakeScheduler()
        loop.run_until_complete(scheduler.start())
        stack.callback(lambda: loop.run_until_complete(scheduler.stop()))
        settings = Settings(
            key_file=str(folder / "keys"),
            pepper_file=str(folder / "pepper"),
            scheduler=f"127.0.0.1:{scheduler.port}",
            long_poll_seconds=0.01,
            retry_seconds=60.0,
            rpc_timeout_seconds=30.0,
            offload_bytes=1 << 30,  # on this thread, which is the one that is watched
        )
        context = running(settings)
        client, gateway = loop.run_until_complete(context.__aenter__())
        stack.callback(lambda: loop.run_until_complete(context.__aexit__(None, None, None)))
        driver = _Driver(loop, client, scheduler, _posts(client))
        session = scheduler.add_session(tenant)
        ids = (session, scheduler.add_model(tenant, session), scheduler.add_sampler(tenant, session))
        yield Target("http", driver.run, tuple(driver.seeds(*ids)), (GATEWAY,), 64 << 20, _mutate)


def _posts(client: httpx.AsyncClient) -> list[str]:
    transport: Any = client._transport
    routes = [route for route in transport.app.router.routes if isinstance(route, Route)]
    return sorted(route.path for route in routes if "POST" in (route.methods or ()))


def _mutate(rng: random.Random, seed: bytes, others: list[bytes]) -> bytes:
    """The route mostly stays."""
    head = seed[:2] if rng.random() < 0.95 else bytes((rng.randrange(256), rng.randrange(256)))
    change = CHANGES[head[1] % len(CHANGES)]
    return head + change(rng, seed[2:], [other[2:] for other in others])


def _said(answer: httpx.Response) -> str:
    """Why a request was refused, in either surface's shape."""
    told = answer.json()
    return str(told.get("detail") or told.get("error", {}).get("message", ""))


class _Driver:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, client: httpx.AsyncClient, scheduler: FakeScheduler, routes: list[str]
    ) -> None:
        self._loop = loop
        self._client = client
        self._scheduler = scheduler
        self._routes = routes
        self.posted: set[str] = set()

    def run(self, data: bytes) -> None:
        if len(data) < 2:
            return
        path = self._routes[data[0] % len(self._routes)].replace(":path}", "}").format(**IN_PATHS)
        headers = {"x-api-key": KEY, "content-type": "application/json", **ENCODINGS[data[1] % len(ENCODINGS)]}
        self._loop.run_until_complete(self._post(path, data[2:], headers))

    async def _post(self, path: str, body: bytes, headers: dict[str, str]) -> None:
        answer = await self._client.post(path, content=body, headers=headers)
        self.posted.add(path)
        self._forget()
        if answer.status_code >= 500 or answer.status_code in NEVER:
            raise Finding(f"{path} answered {answer.status_code}: {answer.text[:300]}")
        if answer.status_code >= 400 and not _said(answer) and answer.status_code != 408:
            raise Finding(f"{path} answered {answer.status_code} without a text")

    def _forget(self) -> None:
        """Accepted requests must not fill the double's memory, nor its keys conflict."""
        self._scheduler.rows.clear()
        self._scheduler.requests.clear()
        self._scheduler.completions.asked.clear()

    def seeds(self, session: str, model: str, sampler: str) -> Iterator[bytes]:
        known = {f"/api/v1/{name}": body for name, body in good_bodies(session, model, sampler).items()}
        known |= {f"/oai/api/v1/{name}": body for name, body in openai_bodies().items()}
        known["/v1/control/jobs"] = {"tasks": [{"prompt": "a", "stop": ["b"]}, {"input": [1, 2]}, _CONTINUED]}
        for number, path in enumerate(self._routes):
            yield bytes((number, 0)) + msgspec.json.encode(known.get(path, {}))
        batch = self._routes.index("/api/v1/forward_backward")
        request = known["/api/v1/forward_backward"]
        yield bytes((batch, 1)) + to_protobuf(request)
        yield bytes((batch, 2)) + to_zstd(request)
