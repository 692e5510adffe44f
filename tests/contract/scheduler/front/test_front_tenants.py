"""Keys and tenants by RPC: what an operator does, and what gateways are told."""

from __future__ import annotations

import asyncio
from pathlib import Path

from redis.asyncio import Redis
from tinkermesh.v1 import tenants_pb2 as pb

from services.common.errors import InvalidInput, UnknownId
from services.common.keyring import Keyring, digest, key_id
from services.scheduler.store import keys
from services.scheduler.tenancy.keys import LONGEST_SECONDS
from tests.contract.scheduler.front.mesh import FrontMesh, Replica, refused, unserved_pool
from tests.doubles.eventually import eventually
from tests.doubles.known_keys import tenant_of
from tests.doubles.valkey import single_server


async def resolved(replica: Replica, mesh: FrontMesh, secret: str) -> pb.ResolveKeyReply:
    return await replica.tenants.ResolveKey(pb.ResolveKeyRequest(digest=digest(mesh.pepper, secret)))


async def until_state(replica: Replica, mesh: FrontMesh, secret: str, state: str) -> None:
    async def reached() -> bool:
        return (await resolved(replica, mesh, secret)).state == state

    await eventually(reached)


async def test_a_new_key_works_at_every_replica_at_once(mesh: FrontMesh) -> None:
    first, second = [await mesh.replica() for _ in range(2)]
    made = await first.tenants.CreateKey(pb.CreateKeyRequest(label="ci"))
    assert made.secret.startswith("tml-") and made.key.state == "active" and made.key.source == "mesh"
    reply = await resolved(second, mesh, made.secret)
    assert (reply.state, reply.tenant_id, reply.label) == ("active", made.key.tenant_id, "ci")
    by_id = await second.tenants.ResolveKey(pb.ResolveKeyRequest(key_id=made.key.key_id))
    assert by_id == reply


@single_server
async def test_only_the_digest_of_a_key_is_stored_SEC_02(replica: Replica, redis_client: Redis) -> None:
    made = await replica.tenants.CreateKey(pb.CreateKeyRequest())
    dump = b"".join([await redis_client.dump(key) or b"" for key in await redis_client.keys("*")])
    assert made.secret.removeprefix("tml-").encode() not in dump
    assert made.key.tenant_id.encode() in dump
    listed = await replica.tenants.ListKeys(pb.ListKeysRequest())
    assert made.secret not in str(listed) and listed.keys[0] == made.key


async def test_a_revoked_key_is_refused_soon_everywhere_and_stays_so(mesh: FrontMesh) -> None:
    first, second = [await mesh.replica() for _ in range(2)]
    made = await first.tenants.CreateKey(pb.CreateKeyRequest())
    assert (await resolved(second, mesh, made.secret)).state == "active"
    revoked = await first.tenants.RevokeKey(pb.RevokeKeyRequest(key_id=made.key.key_id))
    assert revoked.state == "revoked" and revoked.revoked_unix_ms
    assert (await resolved(first, mesh, made.secret)).state == "revoked"
    await until_state(second, mesh, made.secret, "revoked")
    again = await second.tenants.RevokeKey(pb.RevokeKeyRequest(key_id=made.key.key_id))
    assert again == revoked
    async with refused(InvalidInput, "revoked"):
        await first.tenants.RotateKey(pb.RotateKeyRequest(key_id=made.key.key_id))


async def test_rotation_keeps_the_tenant_and_the_old_key_ends_after_its_grace_SEC_03(mesh: FrontMesh) -> None:
    replica = await mesh.replica()
    old = await replica.tenants.CreateKey(pb.CreateKeyRequest(label="ci"))
    new = await replica.tenants.RotateKey(pb.RotateKeyRequest(key_id=old.key.key_id, grace_seconds=3600))
    assert (new.key.tenant_id, new.key.label) == (old.key.tenant_id, "ci")
    assert new.secret != old.secret
    assert (await resolved(replica, mesh, old.secret)).state == "active"
    newer = await replica.tenants.RotateKey(pb.RotateKeyRequest(key_id=new.key.key_id, grace_seconds=1))
    await until_state(replica, mesh, new.secret, "expired")
    newest = await replica.tenants.RotateKey(pb.RotateKeyRequest(key_id=newer.key.key_id))
    assert (await resolved(replica, mesh, newer.secret)).state == "revoked"
    assert (await resolved(replica, mesh, newest.secret)).tenant_id == old.key.tenant_id


async def test_a_key_may_expire(mesh: FrontMesh) -> None:
    replica = await mesh.replica()
    made = await replica.tenants.CreateKey(pb.CreateKeyRequest(expires_seconds=1))
    assert (await resolved(replica, mesh, made.secret)).expires_unix_ms == made.key.expires_unix_ms > 0
    await until_state(replica, mesh, made.secret, "expired")


async def test_keys_of_the_file_are_known_and_can_be_revoked(mesh: FrontMesh, tmp_path: Path) -> None:
    ring = Keyring(tmp_path / "keys.json", mesh.pepper)
    tenant = ring.add("tml-of-the-file", label="bootstrap")
    replica = await mesh.replica(key_file=str(tmp_path / "keys.json"))
    assert (await resolved(replica, mesh, "tml-of-the-file")).tenant_id == tenant
    (listed,) = (await replica.tenants.ListKeys(pb.ListKeysRequest())).keys
    assert (listed.source, listed.label) == ("file", "bootstrap")
    wanted = key_id(digest(mesh.pepper, "tml-of-the-file"))
    await replica.tenants.RevokeKey(pb.RevokeKeyRequest(key_id=wanted))
    assert (await resolved(replica, mesh, "tml-of-the-file")).state == "revoked"
    assert tenant_of(ring, "tml-of-the-file") == tenant, (
        "the file is the operator's; the mesh's own word goes before it"
    )


async def test_a_record_that_cannot_be_read_admits_nobody_and_ends_nothing(
    mesh: FrontMesh, redis_client: Redis, tmp_path: Path
) -> None:
    ring = Keyring(tmp_path / "keys.json", mesh.pepper)
    tenant = ring.add("tml-of-the-file")
    broken = digest(mesh.pepper, "tml-of-the-file")
    replica = await mesh.replica(key_file=str(tmp_path / "keys.json"))
    await redis_client.hset(keys.KEYS, broken, b"\xff{")
    await redis_client.hset(keys.TENANTS, tenant, b'{"weight": "heavy"}')
    await redis_client.incr(keys.TENANCY_VERSION)
    await until_state(replica, mesh, "tml-of-the-file", "revoked")
    made = (await replica.tenants.CreateKey(pb.CreateKeyRequest())).key
    listed = (await replica.tenants.ListTenants(pb.ListTenantsRequest())).tenants
    assert {one.tenant_id: one.weight for one in listed} == {made.tenant_id: 1.0, tenant: 1.0}
    changed = await replica.tenants.SetTenant(pb.SetTenantRequest(tenant_id=tenant, weight=2))
    assert changed.weight == 2.0, "a change replaces what cannot be read"


async def test_access_tokens_made_by_the_mesh_name_their_tenant_SEC_04(mesh: FrontMesh) -> None:
    replica = await mesh.replica()
    book = replica.app._parts.book  # type: ignore[union-attr]
    made = await replica.tenants.CreateKey(pb.CreateKeyRequest())
    found = digest(mesh.pepper, made.secret)
    assert book.tenant_of_digest(found) == made.key.tenant_id
    await replica.tenants.RevokeKey(pb.RevokeKeyRequest(key_id=made.key.key_id))
    assert book.tenant_of_digest(found) == ""


async def test_mistakes_are_named(replica: Replica) -> None:
    tenants = replica.tenants
    async with refused(UnknownId, "tenant_id"):
        await tenants.CreateKey(pb.CreateKeyRequest(tenant_id="nobody"))
    async with refused(UnknownId, "key_id"):
        await tenants.RevokeKey(pb.RevokeKeyRequest(key_id="key-nothing"))
    async with refused(UnknownId, "tenant_id"):
        await tenants.SetTenant(pb.SetTenantRequest(tenant_id="nobody", weight=2))
    made = (await tenants.CreateKey(pb.CreateKeyRequest())).key
    for change, words in (
        ({"weight": 0.0}, "weight"),
        ({"weight": float("nan")}, "weight"),
        ({"quotas": pb.Quotas(requests_per_second=float("inf"))}, "requests_per_second"),
        ({"reset": ["everything"]}, "models"),
        ({"name": "x" * 201}, "name"),
    ):
        async with refused(InvalidInput, words):
            await tenants.SetTenant(pb.SetTenantRequest(tenant_id=made.tenant_id, **change))
    async with refused(InvalidInput, "label"):
        await tenants.CreateKey(pb.CreateKeyRequest(label="x" * 201))
    async with refused(InvalidInput, "expires_seconds"):
        await tenants.CreateKey(pb.CreateKeyRequest(expires_seconds=LONGEST_SECONDS + 1))
    async with refused(InvalidInput, "grace_seconds"):
        await tenants.RotateKey(pb.RotateKeyRequest(key_id=made.key_id, grace_seconds=LONGEST_SECONDS + 1))
    (kept,) = (await tenants.ListKeys(pb.ListKeysRequest())).keys
    assert kept == made, "what was refused changed nothing"


async def test_a_tenant_is_changed_and_reports_what_is_in_force_SEC_10(mesh: FrontMesh) -> None:
    replica = await mesh.replica(quota_models=7, quota_samples=3000)
    await unserved_pool(replica)
    tenant = (await replica.tenants.CreateKey(pb.CreateKeyRequest())).key.tenant_id
    before = await replica.tenants.GetTenant(pb.GetTenantRequest(tenant_id=tenant))
    assert before.weight == 1.0 and before.quotas.models == 7 and not before.overrides.HasField("models")
    change = pb.SetTenantRequest(tenant_id=tenant, name="lab", weight=2, quotas=pb.Quotas(models=4))
    after = await replica.tenants.SetTenant(change)
    assert (after.name, after.weight, after.quotas.models, after.quotas.samples) == ("lab", 2.0, 4, 3000)
    assert after.active_keys == 1 and after.usage[0].pool == "double"
    kept = await replica.tenants.SetTenant(pb.SetTenantRequest(tenant_id=tenant, quotas=pb.Quotas(sessions=1)))
    assert (kept.name, kept.weight, kept.overrides.models, kept.overrides.sessions) == ("lab", 2.0, 4, 1)
    back = await replica.tenants.SetTenant(pb.SetTenantRequest(tenant_id=tenant, reset=["models"]))
    assert back.quotas.models == 7 and back.overrides.sessions == 1
    assert [t.tenant_id for t in (await replica.tenants.ListTenants(pb.ListTenantsRequest())).tenants] == [tenant]


async def test_changes_at_once_by_two_replicas_lose_nothing(mesh: FrontMesh) -> None:
    replicas = [await mesh.replica() for _ in range(2)]
    tenant = (await replicas[0].tenants.CreateKey(pb.CreateKeyRequest())).key.tenant_id
    fields = ["sessions", "models", "queued_bytes", "open_futures", "samples", "tokens_per_minute"]
    changes = [pb.SetTenantRequest(tenant_id=tenant, quotas=pb.Quotas(**{field: 8})) for field in fields]
    await asyncio.gather(*(replicas[n % 2].tenants.SetTenant(change) for n, change in enumerate(changes)))
    found = await replicas[0].tenants.GetTenant(pb.GetTenantRequest(tenant_id=tenant))
    assert all(getattr(found.overrides, field) == 8 for field in fields)
