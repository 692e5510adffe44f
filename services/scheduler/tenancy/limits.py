"""The limits of one request as the Redis functions read them (functions/_quota.lua)."""

from __future__ import annotations

from services.scheduler.tenancy.records import Quotas

_UNLIMITED = Quotas()


def unlimited(tenant_id: str) -> Quotas:
    return _UNLIMITED


def encode_limits(quotas: Quotas, cost: int, *, answers: bool, records: bool = False) -> str:
    """`cost`: tokens of the request. `answers`: its result grows with them. `records`: it leaves sequences behind."""
    numbers = (quotas.models, quotas.queued_bytes, quotas.open_futures, quotas.tokens_per_minute)
    kept = f"{quotas.result_bytes if answers else 0} {quotas.sequence_bytes if records else 0}"
    return f"limits {' '.join(map(str, numbers))} {quotas.requests_per_second!r} {cost} {kept}"
