"""Tenants: what each may use, what it uses, and how that is changed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

import msgspec
from tinkermesh.v1 import tenants_pb2 as pb

from services.common.clock import now_ms
from services.common.errors import InvalidInput, UnknownId
from services.scheduler.store.tenancy import TenancyStore
from services.scheduler.tenancy.book import TenantBook
from services.scheduler.tenancy.records import LARGEST_WEIGHT, QUOTA_NAMES, Overrides, Quotas, TenantRecord

LONGEST_NAME = 200
LARGEST_RATE = 1e9
BURST_SECONDS = 10  # as in functions/_quota.lua


class TenantDesk:
    def __init__(self, store: TenancyStore, book: TenantBook, pools: Callable[[], Awaitable[list[str]]]) -> None:
        self._store = store
        self._book = book
        self._pools = pools

    async def known(self, tenant_id: str) -> str:
        """Raises UnknownId."""
        await self._book.refresh()
        if tenant_id not in self._book.tenant_ids():
            raise UnknownId(f"tenant_id {tenant_id[:64]!r} is not known; ListTenants names them all")
        return tenant_id

    def reports(self, tenant_ids: Iterable[str]) -> list[pb.TenantReport]:
        """Without usage."""
        now = now_ms()
        active = Counter(k.entry.tenant_id for k in self._book.all_keys() if k.entry.state(now) == "active")
        return [self._report(tenant_id, active[tenant_id]) for tenant_id in tenant_ids]

    def _report(self, tenant_id: str, active_keys: int) -> pb.TenantReport:
        record = self._book.tenant(tenant_id)
        return pb.TenantReport(
            tenant_id=tenant_id,
            name=record.name,
            weight=record.weight,
            quotas=_message(self._book.quotas(tenant_id)),
            overrides=_message(record.quotas),
            active_keys=active_keys,
        )

    async def with_usage(self, tenant_id: str) -> pb.TenantReport:
        (report,) = self.reports([tenant_id])
        report.sessions = len(await self._store.open_sessions(tenant_id))
        quotas = self._book.quotas(tenant_id)
        for pool in await self._pools():
            report.usage.append(_usage(pool, await self._store.usage(pool, tenant_id), quotas))
        return report

    async def change(self, request: pb.SetTenantRequest) -> None:
        """Raises UnknownId, InvalidInput."""
        tenant_id = await self.known(request.tenant_id)
        _check(request)
        await self._store.change_tenant(tenant_id, lambda held: _changed(held or TenantRecord(), request))
        await self._book.refresh()


def _message(quotas: Quotas | Overrides) -> pb.Quotas:
    return pb.Quotas(**msgspec.structs.asdict(quotas))


def _check(request: pb.SetTenantRequest) -> None:
    if len(request.name) > LONGEST_NAME:
        raise InvalidInput(f"name: {len(request.name)} characters, the limit is {LONGEST_NAME}")
    if request.HasField("weight") and not 0 < request.weight <= LARGEST_WEIGHT:
        raise InvalidInput(f"weight: {request.weight} is not in (0, {LARGEST_WEIGHT:g}]")
    rate = request.quotas.requests_per_second
    if not math.isfinite(rate) or not 0 <= rate <= LARGEST_RATE:
        raise InvalidInput(f"quotas.requests_per_second: {rate} is not in [0, {LARGEST_RATE:g}]; 0 = no limit")
    if unknown := [name for name in request.reset if name not in QUOTA_NAMES]:
        raise InvalidInput(f"reset: {unknown[0][:64]!r} is no quota; there are: {', '.join(QUOTA_NAMES)}")


def _changed(held: TenantRecord, request: pb.SetTenantRequest) -> TenantRecord:
    given = {name: getattr(request.quotas, name) for name in QUOTA_NAMES if request.quotas.HasField(name)}  # type: ignore[arg-type]
    cleared = dict.fromkeys(request.reset)
    return TenantRecord(
        name=request.name if request.HasField("name") else held.name,
        weight=request.weight if request.HasField("weight") else held.weight,
        quotas=msgspec.structs.replace(held.quotas, **{**cleared, **given}),
    )


def _usage(pool: str, found: dict[str, float], quotas: Quotas) -> pb.PoolUsage:
    usage = pb.PoolUsage(
        pool=pool,
        models=_count(found, "models"),
        queued_bytes=_count(found, "bytes"),
        open_futures=_count(found, "open"),
        samples=_count(found, "samples"),
        result_bytes=_count(found, "results"),
        sequence_bytes=_count(found, "records"),
        job_tasks=_count(found, "job_tasks"),
        log_bytes=_count(found, "log_bytes"),
    )
    if quotas.tokens_per_minute:
        usage.tokens_left = _level(found, "tok", quotas.tokens_per_minute / 60, quotas.tokens_per_minute)
    if rate := quotas.requests_per_second:
        usage.requests_left = _level(found, "req", rate, max(1.0, rate * BURST_SECONDS))
    return usage


def _count(found: dict[str, float], name: str) -> int:
    return max(0, int(found.get(name, 0)))


def _level(found: dict[str, float], name: str, rate: float, size: float) -> float:
    """What the bucket holds now, as functions/_quota.lua counts it."""
    if name not in found:
        return size
    return min(size, found[name] + max(0.0, found["now_ms"] - found[f"{name}_ms"]) * rate / 1000)
