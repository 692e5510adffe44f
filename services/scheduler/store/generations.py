"""Generations under way in Redis: samples without a request row, counted while they are renewed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from services.scheduler.store import keys
from services.scheduler.store.functions import Functions


class Held(NamedTuple):
    """`generation_id` is unique in the mesh."""

    pool: str
    tenant_id: str
    generation_id: str
    prompts: int


class GenerationStore:
    """`lease_ms`: how long one counts after its replica renewed it last."""

    def __init__(self, functions: Functions, *, lease_ms: int) -> None:
        self._call = functions.call
        self._lease_ms = lease_ms

    async def admit(self, held: Held, most_samples: int, limits: str) -> None:
        """`limits`: of its tenant, see tenancy.limits. Raises Busy naming the quota, Unavailable."""
        arguments = held.tenant_id, held.generation_id, held.prompts, self._lease_ms, most_samples, limits
        await self._call("generation_admit", [keys.pool_prefix(held.pool)], *arguments)

    async def charge(self, held: Held, tokens: int, limits: str) -> None:
        """What it may take at most, now that its prompts are tokens. Raises Unavailable."""
        await self._call("generation_charge", [keys.pool_prefix(held.pool)], held.tenant_id, tokens, limits)

    async def renew(self, pool: str, tenant_id: str, generations: Iterable[Held]) -> None:
        """Raises Unavailable."""
        flat = [part for one in generations for part in (one.generation_id, one.prompts)]
        await self._call("generation_renew", [keys.pool_prefix(pool)], tenant_id, self._lease_ms, *flat)

    async def end(self, held: Held) -> None:
        """Repeatable. Raises Unavailable."""
        await self._call(
            "generation_end", [keys.pool_prefix(held.pool)], held.tenant_id, held.generation_id, held.prompts
        )
