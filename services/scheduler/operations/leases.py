"""Leases: who drives each pool, which replicas there are, which sessions expire next."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tinkermesh.v1 import admin_pb2 as pb

from services.scheduler.admin_reports import cursor_of, place_of
from services.scheduler.operations.paging import bounded
from services.scheduler.store.overview import Overview
from services.scheduler.store.registry import RegistryStore
from services.scheduler.store.sessions import SessionStore

SESSIONS_LIMIT = 100


class Leases:
    """`lease_ms`: how long a session lives without a beat."""

    def __init__(self, overview: Overview, registry: RegistryStore, sessions: SessionStore, *, lease_ms: int) -> None:
        self._overview = overview
        self._registry = registry
        self._sessions = sessions
        self._lease_ms = lease_ms

    async def report(self, request: pb.ListLeasesRequest) -> pb.ListLeasesReply:
        """Raises InvalidInput."""
        place, limit = place_of(request.cursor), bounded(request.limit, SESSIONS_LIMIT)
        now_ms = await self._overview.now_ms()
        reply = pb.ListLeasesReply()
        if not request.cursor:
            for pool in await self._registry.pools():
                lease = await self._overview.lease(pool)
                for name in await self._overview.cells(pool):
                    reply.pools.append(_pool_lease(pool, lease, name, await self._overview.cell(pool, name), now_ms))
            replicas, clock = await self._overview.replicas(), await self._overview.clock()
            reply.replicas.extend(_replica(name, entry, clock, now_ms) for name, entry in sorted(replicas.items()))
        page = await self._sessions.soonest(place, limit)
        rows = await self._sessions.rows([found.session_id for found in page])
        ends = {found.session_id: found.seen_ms + self._lease_ms - now_ms for found in page}
        for row, _ in rows:
            left = ends[row.session_id] if row.state == "open" else 0
            reply.sessions.add(session_id=row.session_id, tenant_id=row.tenant_id, state=row.state, expires_in_ms=left)
        reply.next_cursor = cursor_of(page[-1]) if len(page) == limit else ""
        return reply


def _pool_lease(pool: str, lease: Mapping[str, str], name: str, cell: Mapping[str, str], now_ms: int) -> pb.PoolLease:
    left = int(lease["expires_ms"]) - now_ms if "expires_ms" in lease else 0
    return pb.PoolLease(
        pool=pool,
        term=int(lease.get("term", 0)),
        leader=lease.get("replica", "") if left > 0 else "",
        expires_in_ms=left,
        incarnation=cell.get("incarnation", ""),
        fence=int(cell.get("token", 0)),
        cell=name,
    )


def _replica(name: str, entry: str, clock: Mapping[str, str], now_ms: int) -> pb.ReplicaReport:
    row = json.loads(entry)
    sweeps = clock.get("sweeper") == name and int(clock.get("sweeper_until_ms", 0)) > now_ms
    return pb.ReplicaReport(
        replica=name,
        seen_ms_ago=now_ms - int(row["seen_ms"]),
        layout=int(row["layout"]),
        library=str(row["library"]),
        sweeps=sweeps,
    )
