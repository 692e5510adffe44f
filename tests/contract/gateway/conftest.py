"""The application in this process, its fake scheduler behind real gRPC, and two tenants."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from services.common.keyring import Keyring, load_pepper
from services.gateway.app import create_app
from services.gateway.gateway import Gateway
from services.gateway.settings import Settings
from tests.contract.gateway.fake_scheduler import FakeScheduler

KEY = "tml-SECRET-of-the-first-tenant"
OTHER_KEY = "tml-SECRET-of-the-second-tenant"
AT_ONCE = 20.0  # seconds, of a very busy machine: a third of what a patient client's poll lasts


@dataclass(frozen=True)
class Tenants:
    key_file: Path
    pepper_file: Path
    first: str
    second: str


@pytest.fixture
def tenants(tmp_path: Path) -> Tenants:
    pepper_file, key_file = tmp_path / "pepper", tmp_path / "keys.json"
    keyring = Keyring(key_file, load_pepper(pepper_file, create=True))
    return Tenants(key_file, pepper_file, keyring.add(KEY), keyring.add(OTHER_KEY))


@pytest.fixture
def pepper(tenants: Tenants) -> bytes:
    return load_pepper(tenants.pepper_file)


@pytest.fixture
async def scheduler() -> AsyncIterator[FakeScheduler]:
    fake = FakeScheduler()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
def settings(tenants: Tenants, scheduler: FakeScheduler) -> Settings:
    return Settings(
        key_file=str(tenants.key_file),
        pepper_file=str(tenants.pepper_file),
        scheduler=f"127.0.0.1:{scheduler.port}",
        long_poll_seconds=2.0,
        retry_seconds=15.0,
    )


class Client:
    """Requests of one tenant against the application."""

    def __init__(self, http: httpx.AsyncClient, gateway: Gateway, key: str) -> None:
        self.http = http
        self.gateway = gateway
        self.headers = {"x-api-key": key}

    async def post(self, path: str, body: Any = None, **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else msgspec.json.encode(body if body is not None else {})
        base = {**self.headers, "content-type": "application/json"}
        return await self.http.post(f"/api/v1/{path}", content=content, headers={**base, **dashed(headers)})

    async def request(self, method: str, path: str, **headers: str) -> httpx.Response:
        return await self.http.request(method, f"/api/v1/{path}", headers={**self.headers, **dashed(headers)})

    async def protobuf(self, body: bytes, **headers: str) -> httpx.Response:
        return await self.post("forward_backward", body, content_type="application/x-protobuf", **headers)

    async def result(self, request_id: str, *, protobuf: bool = False) -> httpx.Response:
        accept = "application/x-protobuf" if protobuf else "application/json"
        return await self.post(
            "retrieve_future", {"request_id": request_id, "allow_metadata_only": True}, accept=accept
        )

    async def failure(self, response: httpx.Response) -> str:
        """The text of an accepted command's ordered failure, which must be the user's."""
        assert response.status_code == 200, response.text
        answer = (await self.result(response.json()["request_id"])).json()
        assert answer["category"] == "user", answer
        return str(answer["error"])


def dashed(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[tuple[httpx.AsyncClient, Gateway]]:
    gateways: list[Gateway] = []
    app = create_app(settings, gateways.append)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=30) as http:
            yield http, gateways[0]


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[Client]:
    async with running(settings) as (http, gateway):
        yield Client(http, gateway, KEY)


@pytest.fixture
async def hasty(settings: Settings) -> AsyncIterator[Client]:
    """Gives up on an absent scheduler after a second."""
    async with running(msgspec.structs.replace(settings, retry_seconds=1.0)) as (http, gateway):
        yield Client(http, gateway, KEY)


@pytest.fixture
async def patient(settings: Settings) -> AsyncIterator[Client]:
    """Its polls are held for a minute: what is answered sooner was not the poll's own end."""
    async with running(msgspec.structs.replace(settings, long_poll_seconds=60.0)) as (http, gateway):
        yield Client(http, gateway, KEY)


@pytest.fixture
def other(client: Client) -> Client:
    """The same application, another tenant."""
    return Client(client.http, client.gateway, OTHER_KEY)


@pytest.fixture
def session(scheduler: FakeScheduler, tenants: Tenants) -> str:
    return scheduler.add_session(tenants.first)


@pytest.fixture
def model(scheduler: FakeScheduler, tenants: Tenants, session: str) -> str:
    return scheduler.add_model(tenants.first, session)


@pytest.fixture
def sampler(scheduler: FakeScheduler, tenants: Tenants, session: str) -> str:
    return scheduler.add_sampler(tenants.first, session)


@pytest.fixture(autouse=True)
def no_traceback(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No request of these tests may end in an unexpected error or leave a key in the log."""
    caplog.set_level(logging.INFO)
    yield
    unexpected = [r for r in caplog.records if r.exc_info and r.name.startswith("services.")]
    assert not unexpected, [r.getMessage() for r in unexpected]
    assert "SECRET" not in caplog.text
