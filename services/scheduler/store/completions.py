"""Clients of a sampling session in Redis: their numbers, and what settled for each in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.common.ids import CompletionsWait, RequestId, SamplingSessionId
from services.scheduler.store import keys
from services.scheduler.store.functions import Functions

RETRIEVED_PER_CALL = 1024


@dataclass(frozen=True, slots=True)
class Completed:
    """`result_bytes` None = it failed."""

    number: int
    request_id: str
    result_bytes: int | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """How a wait stands; `tenant_id` "" = its sampling session is not known."""

    tenant_id: str
    completions: int


class CompletionStore:
    def __init__(self, functions: Functions) -> None:
        self._call = functions.call

    async def join(self, session: SamplingSessionId, tenant_id: str, call: str, keep_ms: int) -> int:
        """Raises UnknownId, Forbidden."""
        prefix = [keys.pool_prefix(session.pool)]
        return int(await self._call("sampling_join", prefix, str(session), tenant_id, call, keep_ms))

    async def read(
        self, session: SamplingSessionId, tenant_id: str, clone: int, after: int, limit: int
    ) -> list[Completed]:
        """What is behind `after`, in order; what is not is forgotten. Raises UnknownId, Forbidden."""
        prefix = [keys.pool_prefix(session.pool)]
        flat = await self._call("completions_read", prefix, str(session), tenant_id, clone, after, limit)
        return [_completed(entry.decode(), int(n)) for entry, n in zip(flat[::2], flat[1::2], strict=True)]

    async def retrieved(
        self, session: SamplingSessionId, tenant_id: str, requests: Sequence[RequestId], grace_ms: int
    ) -> None:
        """Their results go after `grace_ms`. Raises UnknownId, Forbidden."""
        prefix = [keys.pool_prefix(session.pool)]
        for first in range(0, len(requests), RETRIEVED_PER_CALL):
            some = requests[first : first + RETRIEVED_PER_CALL]
            flat = [part for request in some for part in (request.key, str(request))]
            await self._call("completions_retrieved", prefix, str(session), tenant_id, grace_ms, *flat)

    async def waiting(self, pool: str, waits: Sequence[CompletionsWait]) -> list[Waiting]:
        """How each stands, in their order."""
        flat = [part for wait in waits for part in wait]
        answer = await self._call("completions_waiting", [keys.pool_prefix(pool)], *flat)
        return [Waiting(owner.decode(), int(n)) for owner, n in zip(answer[::2], answer[1::2], strict=True)]


def _completed(entry: str, number: int) -> Completed:
    size, _, request_id = entry.partition(" ")
    return Completed(number, request_id, None if size == "failed" else int(size))
