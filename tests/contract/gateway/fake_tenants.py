"""The keys of tenants as a scheduler knows them."""

from __future__ import annotations

from typing import Any

from tinkermesh.v1 import tenants_pb2 as tenants_pb
from tinkermesh.v1.tenants_pb2_grpc import TenantsServicer


class FakeTenants(TenantsServicer):
    """Knows the keys a test puts into `known`, by digest; of all others the gateway's key file decides."""

    def __init__(self) -> None:
        self.known: dict[str, tenants_pb.ResolveKeyReply] = {}
        self.asked = 0
        self.revoked: list[str] = []

    async def ResolveKey(self, request: Any, context: Any) -> tenants_pb.ResolveKeyReply:
        self.asked += 1
        by_id = {reply.key_id: reply for reply in self.known.values()}
        found = self.known.get(request.digest) or by_id.get(request.key_id)
        return found or tenants_pb.ResolveKeyReply(state="unknown")

    async def RevokeKey(self, request: Any, context: Any) -> tenants_pb.KeyReport:
        self.revoked.append(request.key_id)
        return tenants_pb.KeyReport(key_id=request.key_id, state="revoked")
