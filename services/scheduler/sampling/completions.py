"""One client of a sampling session asks for all of its samples at once instead of for each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from tinkermesh.v1 import scheduler_pb2 as pb

from services.common.errors import InvalidInput, UnknownId
from services.common.ids import (
    CompletionsWait,
    RequestId,
    key_hash,
    parse_completions_wait,
    parse_request_id,
    parse_sampling_session_id,
)
from services.scheduler.store.completions import CompletionStore, Waiting
from services.scheduler.store.requests import Head

JOIN_KEPT_MS = 3_600_000
MOST_PER_ANSWER = 4_096
MOST_RETRIEVED = 65_536
MOST_CURSOR = 1 << 53


class Completions:
    def __init__(self, store: CompletionStore, *, retrieved_grace_ms: int) -> None:
        self._store = store
        self._grace_ms = retrieved_grace_ms

    async def join(self, request: pb.JoinSamplingSessionRequest) -> int:
        """Raises UnknownId, Forbidden."""
        session = parse_sampling_session_id(request.sampling_session_id)
        call = key_hash("join", request.idempotency_key) if request.idempotency_key else ""
        return await self._store.join(session, request.tenant_id, call, JOIN_KEPT_MS)

    async def list(self, request: pb.ListCompletionsRequest) -> pb.ListCompletionsReply:
        """Raises UnknownId, Forbidden, InvalidInput."""
        session = parse_sampling_session_id(request.sampling_session_id)
        if request.after > MOST_CURSOR:
            raise InvalidInput(f"prev_cursor {request.after} is none that this mesh has given out")
        if len(request.retrieved_request_ids) > MOST_RETRIEVED:
            raise InvalidInput(f"retrieved_request_ids: at most {MOST_RETRIEVED} at once")
        retrieved = _in_pool(session.pool, request.retrieved_request_ids)
        await self._store.retrieved(session, request.tenant_id, retrieved, self._grace_ms)
        limit = min(request.limit or MOST_PER_ANSWER, MOST_PER_ANSWER)
        found = await self._store.read(session, request.tenant_id, request.clone, request.after, limit)
        reply = pb.ListCompletionsReply(cursor=found[-1].number if found else request.after)
        for one in found:
            reply.completions.add(
                request_id=one.request_id, failed=one.result_bytes is None, result_bytes=one.result_bytes or 0
            )
        return reply

    async def heads(self, names: Sequence[str]) -> dict[str, Head]:
        """How the waits of these names stand, as if each were a request: settled = there is something behind
        its cursor. Left out: malformed names, unknown sampling sessions."""
        waits: dict[str, dict[str, CompletionsWait]] = {}
        for name in names:
            try:
                wait = parse_completions_wait(name)
            except UnknownId:
                continue
            waits.setdefault(wait.pool, {})[name] = wait
        answers = await asyncio.gather(*(self._in(pool, asked) for pool, asked in waits.items()))
        return {name: head for answer in answers for name, head in answer.items()}

    async def _in(self, pool: str, waits: dict[str, CompletionsWait]) -> dict[str, Head]:
        found = await self._store.waiting(pool, list(waits.values()))
        return {name: _head(one) for name, one in zip(waits, found, strict=True) if one.tenant_id}


def _head(one: Waiting) -> Head:
    return Head(one.tenant_id, "done" if one.completions else "queued", 0, "", "completions", "", 0)


def _in_pool(pool: str, request_ids: Iterable[str]) -> list[RequestId]:
    """Those that can be requests of `pool`: what is reported as retrieved is the client's word, not a question."""
    found = []
    for text in request_ids:
        try:
            request = parse_request_id(text)
        except UnknownId:
            continue
        if request.pool == pool:
            found.append(request)
    return found
