"""Keys and the tokens made from them, as a client meets them at the gateway."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import jwt
import msgspec
import pytest
from starlette.routing import Route
from tinker.cli.auth_api import SelfApiKeyResponse
from tinkermesh.v1 import tenants_pb2 as pb

from services.common.errors import Busy
from services.common.keyring import digest, key_id, load_pepper
from services.gateway.settings import Settings
from services.gateway.tokens import Tokens
from services.gateway.upstream import keys
from tests.contract.gateway.conftest import KEY, OTHER_KEY, Client, Tenants, running
from tests.contract.gateway.fake_scheduler import FakeScheduler

STORED = "tml-SECRET-kept-by-the-scheduler"


@pytest.fixture
def pepper(tenants: Tenants) -> bytes:
    return load_pepper(tenants.pepper_file)


def store(scheduler: FakeScheduler, pepper: bytes, secret: str, state: str, tenant: str, **more: Any) -> str:
    """The scheduler's word on a key; answers the key's id."""
    found = digest(pepper, secret)
    scheduler.tenants.known[found] = pb.ResolveKeyReply(state=state, key_id=key_id(found), tenant_id=tenant, **more)
    return key_id(found)


@pytest.fixture
async def tokens(settings: Settings) -> AsyncIterator[Client]:
    """A client of a gateway that issues tokens."""
    changed = msgspec.structs.replace(settings, jwt_auth=True, jwt_lifetime_seconds=120)
    async with running(changed) as (http, gateway):
        yield Client(http, gateway, KEY)


def with_credential(client: Client, credential: str) -> Client:
    return Client(client.http, client.gateway, credential)


async def capabilities(client: Client) -> int:
    return (await client.request("GET", "get_server_capabilities")).status_code


# ---- keys --------------------------------------------------------------------------------


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
    assert {path.rpartition("/")[2] for path in keyless} == {"healthz", "{file}", "archive"}, keyless
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
    store(scheduler, pepper, KEY, "active", tenants.first)
    assert await capabilities(client) == 200
    store(scheduler, pepper, KEY, "revoked", tenants.first)
    asked = scheduler.tenants.asked
    assert await capabilities(client) == 200, "an answer stands for a moment"
    assert scheduler.tenants.asked == asked
    assert keys.FRESH_SECONDS <= 2.0, "docs/tenants.md promises three seconds with the scheduler's one"
    now = time.monotonic()
    monkeypatch.setattr(keys.time, "monotonic", lambda: now + keys.FRESH_SECONDS + 0.01)
    assert await capabilities(client) == 401


async def test_unknown_key_is_asked_about_once_a_second_and_works_once_made(
    client: Client, scheduler: FakeScheduler, pepper: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = with_credential(client, STORED)
    assert [await capabilities(caller) for _ in range(5)] == [401] * 5
    assert scheduler.tenants.asked == 1
    store(scheduler, pepper, STORED, "active", "tenant-x")
    assert keys.UNKNOWN_SECONDS <= 1.0, "docs/tenants.md promises a second"
    now = time.monotonic()
    monkeypatch.setattr(keys.time, "monotonic", lambda: now + keys.UNKNOWN_SECONDS + 0.01)
    assert await capabilities(caller) == 200


async def test_unknown_keys_displace_no_known_one(
    client: Client, scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = client.gateway.auth._answers
    monkeypatch.setattr(answers, "_recent", keys.Recent(1))
    monkeypatch.setattr(answers, "_unknown", keys.Recent(2))
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


async def test_expiry_is_kept_to_the_second_even_by_a_remembered_answer(
    client: Client, scheduler: FakeScheduler, pepper: bytes
) -> None:
    store(scheduler, pepper, STORED, "active", "tenant-x", expires_unix_ms=int(1000 * time.time()) - 1)
    assert await capabilities(with_credential(client, STORED)) == 401


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


# ---- tokens ------------------------------------------------------------------------------


async def test_config_says_whether_tokens_are_used_API_10(client: Client, tokens: Client) -> None:
    for one, on in ((client, False), (tokens, True)):
        assert (await one.post("client/config", {"sdk_version": "0.38.0"})).json()["pjwt_auth_enabled"] is on
        assert (await one.post("auth/token", {})).status_code == (200 if on else 404)


async def test_token_stands_for_its_key(tokens: Client, scheduler: FakeScheduler, tenants: Tenants) -> None:
    token = (await tokens.post("auth/token", {})).json()["jwt"]
    claims = jwt.decode(token, options={"verify_signature": False})
    assert claims["org_id"] == tenants.first and claims["sub"].endswith(tenants.first)
    assert claims["exp"] - claims["iat"] == 120
    own = with_credential(tokens, token)
    assert (await own.post("create_session", {"tags": [], "sdk_version": "0.38.0"})).status_code == 200
    assert scheduler.session_requests[-1].tenant_id == tenants.first
    refused = await own.request("DELETE", "auth/apikey/me")
    assert refused.status_code == 400, "a token cannot end its key"


async def test_token_of_a_revoked_key_ends_with_it(
    tokens: Client, scheduler: FakeScheduler, pepper: bytes, tenants: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = with_credential(tokens, (await tokens.post("auth/token", {})).json()["jwt"])
    monkeypatch.setattr(keys, "FRESH_SECONDS", 0.0)
    assert await capabilities(own) == 200
    store(scheduler, pepper, KEY, "revoked", tenants.first)
    answer = await own.request("GET", "get_server_capabilities")
    assert answer.status_code == 401
    assert 'error="invalid_token"' in answer.headers["www-authenticate"]


def forged(kind: str, pepper: bytes, good: str) -> str:
    claims = jwt.decode(good, options={"verify_signature": False})
    if kind == "expired":
        return Tokens(pepper, -10).issue(claims["tenant"], claims["key"], "")
    if kind == "another pepper":
        return Tokens(b"x" * 32, 60).issue(claims["tenant"], claims["key"], "")
    if kind == "unsigned":
        return jwt.encode(claims, None, "none")
    if kind == "another tenant":
        return Tokens(pepper, 60).issue("tenant-y", claims["key"], "")
    if kind == "no key":
        return jwt.encode({k: v for k, v in claims.items() if k != "key"}, Tokens(pepper, 60)._secret, "HS256")
    return good[:-3] + ("AAA" if good[-3:] != "AAA" else "BBB")


@pytest.mark.parametrize("kind", ["expired", "another pepper", "unsigned", "another tenant", "no key", "changed"])
async def test_forged_and_expired_tokens_are_told_apart_from_keys_SEC_03(
    tokens: Client, pepper: bytes, kind: str
) -> None:
    good = (await tokens.post("auth/token", {})).json()["jwt"]
    answer = await with_credential(tokens, forged(kind, pepper, good)).request("GET", "get_server_capabilities")
    assert answer.status_code == 401
    assert 'error="invalid_token"' in answer.headers["www-authenticate"]


async def test_token_made_from_a_token_ends_no_later(tokens: Client, pepper: bytes, tenants: Tenants) -> None:
    ends = int(time.time()) + 30
    first = Tokens(pepper, 600).issue(tenants.first, key_id(digest(pepper, KEY)), "", ends)
    second = (await with_credential(tokens, first).post("auth/token", {})).json()["jwt"]
    assert jwt.decode(second, options={"verify_signature": False})["exp"] == ends


async def test_tokens_mean_nothing_where_they_are_off(client: Client, pepper: bytes, tenants: Tenants) -> None:
    token = Tokens(pepper, 600).issue(tenants.first, key_id(digest(pepper, KEY)), "")
    assert await capabilities(with_credential(client, token)) == 401


# ---- audit -------------------------------------------------------------------------------


def decisions(caplog: pytest.LogCaptureFixture) -> list[dict[str, str]]:
    return [record.fields for record in caplog.records if record.name == "tinkermesh.audit"]  # type: ignore[attr-defined]


async def test_an_audit_line_per_admission_decision(
    client: Client, other: Client, model: str, tenants: Tenants, scheduler: FakeScheduler, caplog: Any
) -> None:
    step = {"model_id": model, "seq_id": 1, "adam_params": {"learning_rate": 0.1}}
    accepted = await client.post("optim_step", step)
    await client.post("optim_step", {**step, "seq_id": 2, "adam_params": {"learning_rate": "x"}})
    await other.post("optim_step", {**step, "seq_id": 3})
    await client.post("optim_step", b"{")
    scheduler.failures.append(Busy("quota open_futures: 1 of 1 are unsettled"))
    await client.post("optim_step", {**step, "seq_id": 4})
    await with_credential(client, "tml-SECRET-nobody").request("GET", "get_server_capabilities")
    lines = decisions(caplog)
    assert [line["decision"] for line in lines] == ["admitted", "admitted", "refused", "refused", "refused", "refused"]
    first, broken, foreign, unreadable, busy, unknown = lines
    assert first["tenant"] == tenants.first and first["key"].startswith("key-")
    assert first["op"] == "optim_step" and first["route"] == "POST /api/v1/optim_step"
    assert first["request_id"] == accepted.json()["request_id"]
    assert "fails in its turn" in broken["reason"]
    assert foreign["tenant"] == tenants.second and foreign["reason"].startswith("forbidden")
    assert unreadable["reason"] == "invalid_input"
    assert busy["reason"].startswith("busy: quota open_futures")
    assert unknown["reason"].startswith("unauthenticated") and "tenant" not in unknown


async def test_polls_and_reads_leave_no_audit_line(client: Client, model: str, caplog: Any) -> None:
    await client.post("retrieve_future", {"request_id": "double.0.0"})
    await client.post("get_info", {"model_id": model})
    await client.request("GET", "get_server_capabilities")
    await client.post("telemetry", {})
    assert decisions(caplog) == []


async def test_a_credential_where_an_id_belongs_is_not_audited_SEC_02(
    client: Client, scheduler: FakeScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler.failures.append(Busy(f"tenant of {OTHER_KEY} " + "x" * 1000))
    await client.post("create_session", {"tags": [], "sdk_version": "0.38.0"})
    caplog.set_level(logging.INFO)
    (line,) = decisions(caplog)
    assert "SECRET" not in line["reason"] and len(line["reason"]) <= 200


def test_audit_lines_go_to_a_bounded_file(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    from services.common import audit, logs

    caplog.set_level(logging.INFO)
    audit.write_to(tmp_path / "audit" / "lines", "gateway", 2_000)
    handler = audit.AUDIT.handlers[-1]
    try:
        with logs.bind(tenant_id="t"):
            for number in range(200):
                audit.AUDIT.info("admitted", extra={"fields": {"decision": "admitted", "op": f"op-{number}"}})
    finally:
        audit.AUDIT.removeHandler(handler)
        handler.close()
    found = sorted((tmp_path / "audit").iterdir())
    assert len(found) == 1 + audit.FILES_KEPT
    assert all(file.stat().st_size <= 2_000 for file in found)
    last = msgspec.json.decode(found[0].read_text().splitlines()[-1])
    assert last["op"] == "op-199" and last["logger"] == "tinkermesh.audit" and last["time"]
