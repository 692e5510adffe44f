"""Cancelling: samples end at once, everything else is left alone."""

from __future__ import annotations

from services.common.errors import Forbidden, UnknownId
from services.common.ids import parse_request_id
from services.scheduler.sampling.fleet import Fleet
from services.scheduler.sampling.limits import SamplingLimits
from services.scheduler.sampling.outcome import user_failure
from services.scheduler.store.requests import RequestReader
from services.scheduler.store.sampling import SamplingStore


class Cancellation:
    def __init__(self, store: SamplingStore, reader: RequestReader, fleet: Fleet, limits: SamplingLimits) -> None:
        self._store = store
        self._reader = reader
        self._fleet = fleet
        self._retention_ms = limits.retention_ms

    async def cancel(self, request_id: str, tenant_id: str) -> None:
        """A no-op for unknown ids, settled requests and anything but samples. Raises Forbidden."""
        try:
            request = parse_request_id(request_id)
        except UnknownId:
            return
        head = (await self._reader.heads([request]))[0]
        if head is None:
            return
        if head.tenant_id != tenant_id:
            raise Forbidden(f"request_id {request_id} belongs to another tenant")
        if head.kind == "sample" and not head.settled:
            await self.end_sample(request.pool, request.key, request_id, "cancelled")

    async def end_sample(self, pool: str, key: str, request_id: str, reason: str) -> None:
        """Fails an open sample (user) and aborts it at its sampler; its settlement may have come first."""
        won, sampler = await self._store.settle(pool, key, user_failure(reason), self._retention_ms)
        if won and sampler:
            await self._fleet.abort(pool, sampler, request_id)

    async def end_session(
        self, pool: str, sampling_session_id: str, reason: str, keep_ms: int, *, cancel_open: bool
    ) -> None:
        """No more samples from it; with `cancel_open` those accepted before fail with `reason`."""
        open_keys = await self._store.close(pool, sampling_session_id, reason, keep_ms)
        for key in open_keys if cancel_open else []:
            await self.end_sample(pool, key, f"{pool}.{key}.0", reason)
