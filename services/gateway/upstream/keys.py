"""What the mesh says about keys, remembered for a moment.

A key is asked about again once its answer is `FRESH_SECONDS` old, so a revoked one is refused soon
everywhere. While no scheduler can be reached the last answer stands: nothing is admitted then, and
open polls are to be told that the mesh recovers. That a key is unknown stands for `UNKNOWN_SECONDS`,
apart from what is known: who tries keys neither asks the scheduler each time nor displaces the others.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, NamedTuple, cast

import grpc
from tinkermesh.v1 import tenants_pb2 as pb
from tinkermesh.v1.tenants_pb2_grpc import TenantsStub

from services.common.errors import Unavailable
from services.gateway.upstream.facts import Recent
from services.gateway.upstream.retry import Retry

FRESH_SECONDS = 2.0
OUTAGE_SECONDS = 300.0
LOOKUP_SECONDS = 5.0
AWAY_SECONDS = 1.0  # after a failed renewal nothing is asked anew for so long
RENEWAL_SECONDS = 0.5  # for an answer that may stand
REMEMBERED = 16_384
UNKNOWN_SECONDS = 1.0  # a key made meanwhile works after so long
UNKNOWN_REMEMBERED = 4_096


class _Answer(NamedTuple):
    reply: pb.ResolveKeyReply
    at: float


class TenantsClient:
    """Typed calls of the Tenants service. Raises errors of services.common.errors only."""

    def __init__(self, channel: grpc.aio.Channel, retry: Retry) -> None:
        self._stub: Any = TenantsStub(channel)
        self._retry = retry

    async def resolve(self, request: pb.ResolveKeyRequest, seconds: float) -> pb.ResolveKeyReply:
        """Tried for `seconds` at most."""
        reply = await self._retry.call(lambda timeout: self._stub.ResolveKey(request, timeout=timeout), seconds)
        return cast("pb.ResolveKeyReply", reply)

    async def revoke(self, key_id: str) -> None:
        request = pb.RevokeKeyRequest(key_id=key_id)
        await self._retry.call(lambda timeout: self._stub.RevokeKey(request, timeout=timeout))


class KeyAnswers:
    def __init__(self, client: TenantsClient) -> None:
        self._client = client
        self._recent: Recent[str, _Answer] = Recent(REMEMBERED)
        self._unknown: Recent[str, float] = Recent(UNKNOWN_REMEMBERED)  # when each was last asked about
        self._away_until = 0.0
        self._asking: dict[str, asyncio.Task[pb.ResolveKeyReply]] = {}

    async def of_digest(self, digest: str) -> pb.ResolveKeyReply:
        """Raises Unavailable when it was never asked about and no scheduler can be reached."""
        return await self._answer(digest, pb.ResolveKeyRequest(digest=digest))

    async def of_id(self, key_id: str) -> pb.ResolveKeyReply:
        return await self._answer(key_id, pb.ResolveKeyRequest(key_id=key_id))

    def remember(self, reference: str, reply: pb.ResolveKeyReply) -> None:
        self._unknown.drop(reference)
        self._recent.put(reference, _Answer(reply, time.monotonic()))

    def forget(self, *references: str) -> None:
        """Ask anew at the next use."""
        for reference in references:
            self._unknown.drop(reference)
            self._recent.drop(reference)

    async def _answer(self, reference: str, request: pb.ResolveKeyRequest) -> pb.ResolveKeyReply:
        asked_at = self._unknown.get(reference)
        if asked_at is not None and time.monotonic() - asked_at < UNKNOWN_SECONDS:
            return pb.ResolveKeyReply(state="unknown")
        held = self._recent.get(reference)
        age = time.monotonic() - held.at if held is not None else OUTAGE_SECONDS
        if held is not None and age < FRESH_SECONDS:
            return held.reply
        if held is None or age >= OUTAGE_SECONDS:
            return await asyncio.shield(self._ask(reference, request, LOOKUP_SECONDS))
        if time.monotonic() < self._away_until:
            return held.reply
        try:
            return await asyncio.shield(self._ask(reference, request, RENEWAL_SECONDS))
        except Unavailable:
            self._away_until = time.monotonic() + AWAY_SECONDS
            return held.reply

    def _ask(self, reference: str, request: pb.ResolveKeyRequest, seconds: float) -> asyncio.Task[pb.ResolveKeyReply]:
        """Concurrent questions share one call."""
        task = self._asking.get(reference)
        if task is None:
            task = self._asking[reference] = asyncio.create_task(self._fetch(reference, request, seconds))
            task.add_done_callback(lambda done: self._asked(reference, done))
        return task

    def _asked(self, reference: str, done: asyncio.Task[pb.ResolveKeyReply]) -> None:
        del self._asking[reference]
        if not done.cancelled():
            done.exception()  # looked at: whoever asked may have gone away meanwhile

    async def _fetch(self, reference: str, request: pb.ResolveKeyRequest, seconds: float) -> pb.ResolveKeyReply:
        reply = await self._client.resolve(request, seconds)
        if reply.state == "unknown":
            self.forget(reference)
            self._unknown.put(reference, time.monotonic())
        else:
            self.remember(reference, reply)
        return reply
