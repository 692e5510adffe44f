"""Keys, as a client meets them at the gateway."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from starlette.routing import Route
from tinker.cli.auth_api import SelfApiKeyResponse

from services.gateway import auth
from services.gateway.settings import Settings
from services.gateway.upstream import keys
from tests.contract.gateway.conftest import KEY, Client, Tenants, running
from tests.contract.gateway.credentials import capabilities, store, with_credential
from tests.contract.gateway.fake_scheduler import FakeScheduler

STORED = "tml-SECRET-kept-by-the-scheduler"


@pytest.mark.parametrize("headers", [{"x-api-key": KEY}, {"authorization": f"Bearer {KEY}"}])
async def test_key_is_read_from_either_header_SEC_01(client: Client, headers: dict[str, str]) -> None:
    client.headers = headers
    assert await capabilities(client) == 200


@pytest.mark.parametrize("headers", [{}, {"x-api-key": "  "}, {"authorization": "Basic x"}, {"x-api-key": "tml-no"}])
async def test_missing_blank_and_unknown_keys_are_401_SEC_01_SEC_03(client: Client, headers: dict[str, str]) -> None:
    client.headers = headers
    answer = await client.request("GET", "get_server_capabilities")
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"


CONSOLE = {"/console", "/console/", "/console/static/{file}"}
"""A page that knows nothing: what it shows it reads with the key that it is given."""


async def test_every_route_but_health_and_signed_links_needs_a_key_SEC_01(
    client: Client, scheduler: FakeScheduler
) -> None:
    transport: Any = client.http._transport
    routes = [route for route in transport.app.router.routes if isinstance(route, Route)]
    served = {(method, route.path) for route in routes for method in (route.methods or set()) - {"HEAD"}}
    answers = {
        (method, path): await client.http.request(method, re.sub(r"{[^}]*}", "x", path), content=b"{}")
        for method, path in served
    }
    keyless = {path.removeprefix("/api/v1/") for (_, path), answer in answers.items() if answer.status_code != 401}
    assert {path.rpartition("/")[2] for path in keyless - CONSOLE} == {"healthz", "{file}", "archive"}, keyless
    assert keyless >= CONSOLE
    assert len(served) > 40 and set(scheduler.calls) <= {"Watch"} and not scheduler.catalog.asked


async def test_key_kept_by_the_scheduler_works(client: Client, scheduler: FakeScheduler, pepper: bytes) -> None:
    store(scheduler, pepper, STORED, "active", "tenant-x")
    made = await with_credential(client, STORED).post("create_session", {"tags": [], "sdk_version": "0.38.0"})
    assert made.status_code == 200, made.text
    assert scheduler.session_requests[-1].tenant_id == "tenant-x"


@pytest.mark.parametrize("state", ["revoked", "expired"])
async def test_the_schedulers_no_goes_before_the_files_yes_SEC_03(
    client: Client, scheduler: FakeScheduler, pepper: bytes, tenants: Tenants, state: str
) -> None:
    store(scheduler, pepper, KEY, state, tenants.first)
    answer = await client.request("GET", "get_server_capabilities")
    assert answer.status_code == 401
    assert state in answer.json()["detail"]


async def test_revoked_key_is_refused_within_the_documented_bound(
    client: Client, scheduler: FakeScheduler, pepper: bytes, tenants: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert keys.FRESH_SECONDS <= 2.0, "docs/tenants.md promises three seconds with the scheduler's one"
    monkeypatch.setattr(keys, "FRESH_SECONDS", 3600.0)
    store(scheduler, pepper, KEY, "active", tenants.first)
    assert await capabilities(client) == 200
    store(scheduler, pepper, KEY, "revoked", tenants.first)
    asked = scheduler.tenants.asked
    assert await capabilities(client) == 200, "an answer stands for its time"
    assert scheduler.tenants.asked == asked
    monkeypatch.setattr(keys, "FRESH_SECONDS", 0.0)  # it is over
    assert await capabilities(client) == 401


async def test_unknown_key_is_asked_about_once_a_second_and_works_once_made(
    client: Client, scheduler: FakeScheduler, pepper: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert keys.UNKNOWN_SECONDS <= 1.0, "docs/tenants.md promises a second"
    monkeypatch.setattr(keys, "UNKNOWN_SECONDS", 3600.0)
    caller = with_credential(client, STORED)
    assert [await capabilities(caller) for _ in range(5)] == [401] * 5
    assert scheduler.tenants.asked == 1
    store(scheduler, pepper, STORED, "active", "tenant-x")
    monkeypatch.setattr(keys, "UNKNOWN_SECONDS", 0.0)
    assert await capabilities(caller) == 200


async def test_unknown_keys_displace_no_known_one(
    client: Client, scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = client.gateway.auth._answers
    monkeypatch.setattr(answers, "_recent", keys.Recent(1))
    monkeypatch.setattr(answers, "_unknown", keys.Recent(2))
    for name in ("FRESH_SECONDS", "UNKNOWN_SECONDS"):
        monkeypatch.setattr(keys, name, 3600.0)
    assert await capabilities(client) == 200
    for number in range(4):
        assert await capabilities(with_credential(client, f"tml-SECRET-tried-{number}")) == 401
    asked = scheduler.tenants.asked
    assert await capabilities(client) == 200
    assert scheduler.tenants.asked == asked, "still remembered"
    assert await capabilities(with_credential(client, "tml-SECRET-tried-0")) == 401
    assert scheduler.tenants.asked == asked + 1, "the oldest of the unknown is forgotten"


@pytest.mark.parametrize("credential", ["sk-SECRET", "TML-SECRET", "eyJ.no.token", "x" * 10_000])
async def test_what_cannot_be_a_key_is_refused_unasked(
    client: Client, scheduler: FakeScheduler, credential: str
) -> None:
    assert await capabilities(with_credential(client, credential)) == 401
    assert scheduler.tenants.asked == 0


async def test_expiry_is_kept_to_the_millisecond_even_by_a_remembered_answer(
    client: Client, scheduler: FakeScheduler, pepper: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "FRESH_SECONDS", 3600.0)
    ends = int(1000 * time.time()) + 3_600_000
    store(scheduler, pepper, STORED, "active", "tenant-x", expires_unix_ms=ends)
    caller = with_credential(client, STORED)
    for now, status in ((ends - 1, 200), (ends, 401)):
        monkeypatch.setattr(auth, "now_ms", lambda now=now: now)
        assert await capabilities(caller) == status
    assert scheduler.tenants.asked == 1


async def test_known_keys_outlast_a_scheduler_that_is_away_and_new_ones_wait(
    hasty: Client, scheduler: FakeScheduler, pepper: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(scheduler, pepper, STORED, "active", "tenant-x")
    monkeypatch.setattr(keys, "LOOKUP_SECONDS", 0.3)
    known = with_credential(hasty, STORED)
    me = await known.request("GET", "auth/apikey/me")
    assert me.status_code == 200
    monkeypatch.setattr(keys, "FRESH_SECONDS", 0.0)
    await scheduler.stop()
    assert (await known.request("GET", "auth/apikey/me")).status_code == 200
    never_asked = await hasty.request("GET", "auth/apikey/me")
    assert never_asked.status_code == 503
    assert never_asked.headers["retry-after"] == "1"
    await scheduler.start()


async def test_own_key_is_described_and_deleted(client: Client, scheduler: FakeScheduler, pepper: bytes) -> None:
    made = store(scheduler, pepper, STORED, "active", "tenant-x", label="laptop")
    own = with_credential(client, STORED)
    me = (await own.request("GET", "auth/apikey/me")).json()
    SelfApiKeyResponse.model_validate(me)
    assert me["name"] == "laptop" and isinstance(me["key_id"], int) and "tenant-x" in me["note"]
    assert me["details"]["org_details"]["name"] == "tenant-x"
    assert (await own.request("DELETE", "auth/apikey/me")).status_code == 204
    assert scheduler.tenants.revoked == [made]
    store(scheduler, pepper, STORED, "revoked", "tenant-x")
    assert await capabilities(own) == 401, "this gateway asks anew at once"


@pytest.mark.parametrize("stored", [True, False], ids=["by the mesh", "in the file"])
async def test_a_key_from_before_a_new_pepper_still_works_SEC_03(
    settings: Settings, scheduler: FakeScheduler, tenants: Tenants, pepper: bytes, stored: bool
) -> None:
    if stored:
        store(scheduler, pepper, STORED, "active", "tenant-x")
    tenants.pepper_file.write_text("f" * 64 + "\n" + pepper.decode())
    async with running(settings) as (http, gateway):
        own = Client(http, gateway, STORED if stored else KEY)
        me = (await own.request("GET", "auth/apikey/me")).json()
        assert me["details"]["org_details"]["name"] == ("tenant-x" if stored else tenants.first)
        assert await capabilities(Client(http, gateway, "tml-SECRET-nobody")) == 401
