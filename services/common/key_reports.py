"""A key as operators see it, whoever keeps its record."""

from __future__ import annotations

from tinkermesh.v1 import tenants_pb2 as pb

from services.common.clock import now_ms
from services.common.keyring import KeyEntry, key_id


def key_report(key_digest: str, entry: KeyEntry, source: str) -> pb.KeyReport:
    """`source`: mesh | file."""
    return pb.KeyReport(
        key_id=key_id(key_digest),
        tenant_id=entry.tenant_id,
        label=entry.label,
        state=entry.state(now_ms()),
        created_unix_ms=entry.created_ms,
        expires_unix_ms=entry.expires_ms,
        revoked_unix_ms=entry.revoked_ms,
        source=source,
    )
