"""A client that retries as the SDK does, and writes down everything it was told."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.doubles.wire_client import Body, Json, WireClient

ACCEPT_SECONDS = 60.0
SETTLE_SECONDS = 90.0
PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8)
# What the SDK repeats by itself and quietly. 429 belongs to quotas, which no history reaches; 500 is a bug.
RETRIED_POST = frozenset({408, 503})
RETRIED_POLL = frozenset({408, 503})


class ClientSaw(Exception):
    """Something no client of a mesh that loses nothing may see."""


@dataclass(slots=True)
class Seen:
    """Of one history: answers by (route, status or exception), and what was retrieved."""

    answers: Counter[str] = field(default_factory=Counter)
    outcomes: dict[str, bytes] = field(default_factory=dict)  # request id -> body
    violations: list[str] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)  # why futures were said to wait

    def settled(self, request_id: str, body: bytes) -> None:
        """Every retrieval of a future must say the same."""
        if self.outcomes.setdefault(request_id, body) != body:
            self.violations.append(f"future {request_id} was answered in two ways: {body[:80]!r}")


class RetryingClient:
    """One tenant's; every attempt of a request goes to the next gateway."""

    def __init__(self, urls: list[str], api_key: str, seen: Seen, rng: random.Random) -> None:
        self._wire = WireClient(urls, api_key, timeout_seconds=12.0)
        self._gateways = len(urls)
        self._seen = seen
        self._rng = rng

    async def close(self) -> None:
        await self._wire.close()

    async def post(self, path: str, body: Body, *, again: bool = False, expect: int = 200) -> Json:
        """The answer to an accepted request; `again`: it is sent once more, and must be answered alike.

        Raises ClientSaw.
        """
        key = f"stainless-python-retry-{uuid.uuid4()}"  # not of the seed: that may be played twice on one mesh
        answer = await self._until(path, body, RETRIED_POST, ACCEPT_SECONDS, expect, **{"x-idempotency-key": key})
        if again:
            repeated = await self._until(path, body, RETRIED_POST, ACCEPT_SECONDS, expect, **{"x-idempotency-key": key})
            if _ids(repeated) != _ids(answer):
                raise ClientSaw(f"{path}: a repeat was answered {_ids(repeated)}, the first {_ids(answer)}")
        return dict(answer.json()) if answer.content else {}

    async def future(self, request_id: str, *, protobuf: bool) -> bytes:
        """The body of its outcome. Raises ClientSaw."""
        accept = "application/x-protobuf" if protobuf else "application/json"
        body = {"request_id": request_id}
        answer = await self._until("/retrieve_future", body, RETRIED_POLL, SETTLE_SECONDS, 200, accept=accept)
        self._seen.settled(f"{request_id} {accept}", answer.content)
        return answer.content

    async def outcome_everywhere(self, request_id: str, *, protobuf: bool) -> None:
        """Asks every gateway; `Seen.settled` compares."""
        for _ in range(self._gateways):
            await self.future(request_id, protobuf=protobuf)

    async def _until(
        self, path: str, body: Body, retried: frozenset[int], seconds: float, expect: int, **headers: str
    ) -> httpx.Response:
        deadline, attempt, last = time.monotonic() + seconds, 0, "nothing"
        gateway = self._rng.randrange(self._gateways)
        while time.monotonic() < deadline:
            try:
                answer = await self._wire.post(path, body, gateway=gateway + attempt, **headers)
            except httpx.TransportError as error:
                last = type(error).__name__
                self._seen.answers[f"{path} {last}"] += 1
                await asyncio.sleep(PAUSES[min(attempt, len(PAUSES) - 1)])
            else:
                last = f"{answer.status_code} {answer.text[:300]}"
                self._seen.answers[f"{path} {answer.status_code}"] += 1
                if answer.status_code == expect:
                    return answer
                if answer.status_code not in retried:
                    raise ClientSaw(f"{path}: {last}")
                if answer.status_code != 408:
                    await asyncio.sleep(PAUSES[min(attempt, len(PAUSES) - 1)])
            attempt += 1
        raise ClientSaw(f"{path} {_named(body)}: not answered within {seconds:g} s; at last: {last}")


def _ids(answer: httpx.Response) -> Any:
    if not answer.content:
        return None
    return {name: value for name, value in answer.json().items() if name.endswith(("_id", "_ids"))}


def _named(body: Body) -> str:
    return "" if isinstance(body, bytes) else " ".join(str(v) for k, v in body.items() if k.endswith("_id"))
