"""What is kept of a tenant: its name, its share of the turns, and its own quotas."""

from __future__ import annotations

import msgspec

DEFAULT_WEIGHT = 1.0
LARGEST_WEIGHT = 1000.0
TENANT_CLASSES = ("low", "normal", "high")


class Quotas(msgspec.Struct, frozen=True, omit_defaults=True):
    """0 = no limit. Occupancy (all but the two rates) counts per pool, sessions over all pools."""

    sessions: int = 0
    models: int = 0
    queued_bytes: int = 0
    open_futures: int = 0
    samples: int = 0
    tokens_per_minute: int = 0
    requests_per_second: float = 0.0
    result_bytes: int = 0
    sequence_bytes: int = 0
    job_tasks: int = 0


class Overrides(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tenant's own quotas; None = the mesh's default."""

    sessions: int | None = None
    models: int | None = None
    queued_bytes: int | None = None
    open_futures: int | None = None
    samples: int | None = None
    tokens_per_minute: int | None = None
    requests_per_second: float | None = None
    result_bytes: int | None = None
    sequence_bytes: int | None = None
    job_tasks: int | None = None

    def over(self, defaults: Quotas) -> Quotas:
        mine = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        return msgspec.structs.replace(defaults, **mine)


def tenant_class(weight: float) -> str:
    """For metrics, which name no tenant: below, at or above the default weight."""
    if weight == DEFAULT_WEIGHT:
        return "normal"
    return "low" if weight < DEFAULT_WEIGHT else "high"


QUOTA_NAMES = tuple(field.name for field in msgspec.structs.fields(Quotas))


class TenantRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str = ""
    weight: float = DEFAULT_WEIGHT
    quotas: Overrides = Overrides()
