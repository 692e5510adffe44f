"""Tokens made from keys, as a client meets them at the gateway."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import jwt
import msgspec
import pytest

from services.common.keyring import digest, key_id
from services.gateway import auth
from services.gateway.settings import Settings
from services.gateway.tokens import Tokens
from services.gateway.upstream import keys
from tests.contract.gateway.conftest import KEY, Client, Tenants, running
from tests.contract.gateway.credentials import capabilities, store, with_credential
from tests.contract.gateway.fake_scheduler import FakeScheduler


@pytest.fixture
async def tokens(settings: Settings) -> AsyncIterator[Client]:
    """A client of a gateway that issues tokens."""
    changed = msgspec.structs.replace(settings, jwt_auth=True, jwt_lifetime_seconds=120)
    async with running(changed) as (http, gateway):
        yield Client(http, gateway, KEY)


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


async def test_token_of_a_key_that_expires_ends_with_it_SEC_03(
    tokens: Client, scheduler: FakeScheduler, pepper: bytes, tenants: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = int(1000 * time.time()) + 3_600_000
    store(scheduler, pepper, KEY, "active", tenants.first, expires_unix_ms=ends)
    own = with_credential(tokens, (await tokens.post("auth/token", {})).json()["jwt"])
    assert await capabilities(own) == 200
    monkeypatch.setattr(auth, "now_ms", lambda: ends)
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


@pytest.mark.parametrize("credential", ["key", "token"])
async def test_a_key_file_that_cannot_be_read_is_nobodys_bad_request_API_06(
    tokens: Client, tenants: Tenants, monkeypatch: pytest.MonkeyPatch, credential: str
) -> None:
    """The SDK gives up at a 400; an operator mends the file."""
    token = (await tokens.post("auth/token", {})).json()["jwt"]
    own = with_credential(tokens, token if credential == "token" else KEY)
    monkeypatch.setattr(keys, "FRESH_SECONDS", 0.0)
    tenants.key_file.write_text("{broken")
    answer = await own.request("GET", "get_server_capabilities")
    assert (answer.status_code, "cannot be checked now" in answer.json()["detail"]) == (503, True)
