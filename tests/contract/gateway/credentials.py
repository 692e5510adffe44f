"""Credentials for the tests of keys and tokens."""

from __future__ import annotations

from typing import Any

from tinkermesh.v1 import tenants_pb2 as pb

from services.common.keyring import digest, key_id
from tests.contract.gateway.conftest import Client
from tests.contract.gateway.fake_scheduler import FakeScheduler


def store(scheduler: FakeScheduler, pepper: bytes, secret: str, state: str, tenant: str, **more: Any) -> str:
    """The scheduler's word on a key; answers the key's id."""
    found = digest(pepper, secret)
    scheduler.tenants.known[found] = pb.ResolveKeyReply(state=state, key_id=key_id(found), tenant_id=tenant, **more)
    return key_id(found)


def with_credential(client: Client, credential: str) -> Client:
    return Client(client.http, client.gateway, credential)


async def capabilities(client: Client) -> int:
    return (await client.request("GET", "get_server_capabilities")).status_code
