"""The Tenants service: each method names the desk that does the work."""

from __future__ import annotations

from tinkermesh.v1 import tenants_pb2 as pb
from tinkermesh.v1 import tenants_pb2_grpc

from services.common.clock import now_ms
from services.common.grpc_boundary import Context
from services.common.key_reports import key_report
from services.scheduler.tenancy.book import KnownKey, TenantBook
from services.scheduler.tenancy.desk import TenantDesk
from services.scheduler.tenancy.keys import KeyDesk

KEYS_LIMIT, TENANTS_LIMIT, LARGEST_LIMIT = 1_000, 100, 10_000


class Tenants(tenants_pb2_grpc.TenantsServicer):
    def __init__(self, book: TenantBook, keys: KeyDesk, tenants: TenantDesk) -> None:
        self._book = book
        self._keys = keys
        self._tenants = tenants

    async def CreateKey(self, request: pb.CreateKeyRequest, context: Context) -> pb.NewKey:
        secret, made = await self._keys.create(request.tenant_id, request.label, request.expires_seconds)
        return pb.NewKey(secret=secret, key=_report(made))

    async def ListKeys(self, request: pb.ListKeysRequest, context: Context) -> pb.ListKeysReply:
        await self._book.refresh()
        wanted = [known for known in self._book.all_keys() if request.tenant_id in ("", known.entry.tenant_id)]
        wanted.sort(key=lambda known: (known.entry.created_ms, known.digest))
        limit = min(request.limit or KEYS_LIMIT, LARGEST_LIMIT)
        return pb.ListKeysReply(keys=[_report(known) for known in wanted[:limit]])

    async def RotateKey(self, request: pb.RotateKeyRequest, context: Context) -> pb.NewKey:
        secret, made = await self._keys.rotate(request.key_id, request.grace_seconds, request.expires_seconds)
        return pb.NewKey(secret=secret, key=_report(made))

    async def RevokeKey(self, request: pb.RevokeKeyRequest, context: Context) -> pb.KeyReport:
        return _report(await self._keys.revoke(request.key_id))

    async def ListTenants(self, request: pb.ListTenantsRequest, context: Context) -> pb.ListTenantsReply:
        await self._book.refresh()
        wanted = self._book.tenant_ids()[: min(request.limit or TENANTS_LIMIT, LARGEST_LIMIT)]
        return pb.ListTenantsReply(tenants=self._tenants.reports(wanted))

    async def GetTenant(self, request: pb.GetTenantRequest, context: Context) -> pb.TenantReport:
        return await self._tenants.with_usage(await self._tenants.known(request.tenant_id))

    async def SetTenant(self, request: pb.SetTenantRequest, context: Context) -> pb.TenantReport:
        await self._tenants.change(request)
        return await self._tenants.with_usage(request.tenant_id)

    async def ResolveKey(self, request: pb.ResolveKeyRequest, context: Context) -> pb.ResolveKeyReply:
        found = await self._book.find(request.digest, request.key_id)
        if found is None:
            return pb.ResolveKeyReply(state="unknown")
        return pb.ResolveKeyReply(
            state=found.entry.state(now_ms()),
            key_id=found.key_id,
            tenant_id=found.entry.tenant_id,
            label=found.entry.label,
            expires_unix_ms=found.entry.expires_ms,
        )


def _report(known: KnownKey) -> pb.KeyReport:
    return key_report(known.digest, known.entry, known.source)
