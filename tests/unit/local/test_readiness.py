"""When a child counts as ready, and a mesh as serving; every wait has a bound."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from services.common.errors import Unavailable
from services.common.grpc_server import GrpcServer
from services.local import mesh as local_mesh
from services.local import readiness
from services.local.mesh import LocalMesh
from services.local.spec import ChildSpec, Readiness
from tests.unit.local.test_plan import settings
from tests.unit.local.test_supervisor import spec

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[str]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def answering(reply: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if reply and await reader.readline() == b"PING\r\n":
            writer.write(reply)
            await writer.drain()
        await reader.read()  # until the probe closes its end
        writer.close()

    return serve


def redis_at(directory: Path, address: str) -> ChildSpec:
    return spec(directory, "redis", readiness=Readiness.REDIS_PING, address=address, port_file=None)


@pytest.mark.parametrize(
    ("reply", "ready"), [(b"+PONG\r\n", True), (b"-LOADING Redis is loading the dataset in memory\r\n", False)]
)
async def test_redis_is_ready_once_it_answers_commands(tmp_path: Path, reply: bytes, ready: bool) -> None:
    async with listening(answering(reply)) as address:
        assert await readiness.is_ready(redis_at(tmp_path, address)) is ready


async def test_redis_that_is_silent_or_absent_is_not_ready_and_costs_a_second_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "PROBE_SECONDS", 0.2)
    began = time.monotonic()
    async with listening(answering(b"")) as address:
        assert not await readiness.is_ready(redis_at(tmp_path, address))
    assert not await readiness.is_ready(redis_at(tmp_path, address))  # nobody listens there any more
    assert time.monotonic() - began < 5.0


async def test_service_is_ready_when_its_port_file_is_there_and_its_health_says_so(tmp_path: Path) -> None:
    server = GrpcServer(["tinkermesh.v1.Double"])
    port = await server.start("127.0.0.1:0", serving=False)
    child = spec(tmp_path, "trainer", readiness=Readiness.GRPC_HEALTH, address=f"127.0.0.1:{port}")
    try:
        assert child.port_file is not None
        assert not await readiness.is_ready(child)
        child.port_file.write_text(str(port))
        assert not await readiness.is_ready(child)
        await server.set_serving(True)
        assert await readiness.is_ready(child)
    finally:
        await server.stop(0)
    assert not await readiness.is_ready(child)


def served(**said: Any) -> dict[str, Any]:
    return {"supported_models": [{"model_name": "org/m", "trainable": True, "sampleable": True, **said}]}


async def test_mesh_whose_local_key_was_revoked_comes_up_and_does_not_offer_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(url: str, key: str) -> Any:
        raise HTTPError(url, 401, "Unauthorized", Message(), None)

    monkeypatch.setattr(local_mesh, "SERVING_SECONDS", 0.3)
    monkeypatch.setattr(local_mesh, "get_json", refuse)
    mesh = LocalMesh(settings(tmp_path))
    try:
        assert set(mesh.client_environment) == {"TINKER_BASE_URL", "TINKER_API_KEY"}
        await mesh._wait_serving()
        assert set(mesh.client_environment) == {"TINKER_BASE_URL"}
    finally:
        await mesh.stop()


@pytest.mark.parametrize(
    ("answer", "sampler", "missing"),
    [
        (served(), True, ""),
        (served(sampleable=False), True, "not sampleable"),
        (served(sampleable=False), False, ""),
        (served(trainable=False, sampleable=False), True, "not trainable, not sampleable"),
        (served(model_name="org/other"), True, "no pool for org/m"),
        ({"supported_models": []}, True, "no pool for org/m"),
        ({}, True, "get_server_capabilities"),
    ],
)
async def test_mesh_that_does_not_serve_in_time_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any], sampler: bool, missing: str
) -> None:
    monkeypatch.setattr(local_mesh, "SERVING_SECONDS", 0.3)
    monkeypatch.setattr(local_mesh, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(local_mesh, "get_json", lambda url, key: answer)
    mesh = LocalMesh(settings(tmp_path, sampler=sampler))
    try:
        if not missing:
            await mesh._wait_serving()
            return
        with pytest.raises(Unavailable, match=missing):
            await mesh._wait_serving()
    finally:
        await mesh.stop()
