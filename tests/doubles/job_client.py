"""Jobs as any HTTP client asks for them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx

Json = dict[str, Any]
OPEN = ("queued", "running", "cancelling")
PATIENCE_SECONDS = 60.0


class JobClient:
    """`patient` calls are repeated while no gateway or scheduler answers."""

    def __init__(self, base_url: str, api_key: str) -> None:
        self.http = httpx.AsyncClient(base_url=base_url, headers={"x-api-key": api_key}, timeout=60.0, trust_env=False)

    async def post(self, body: Any, **headers: str) -> httpx.Response:
        return await self.http.post("/v1/control/jobs", json=body, headers=headers)

    async def create(self, body: Any, key: str = "") -> str:
        """With a key it is patient. Answers the job's id."""
        headers = {"x-idempotency-key": key} if key else {}
        answer = await (
            self._patient("POST", "/v1/control/jobs", json=body, headers=headers) if key else self.post(body)
        )
        assert answer.status_code in (200, 201), answer.text
        return str(answer.json()["job_id"])

    async def get(self, job_id: str, rest: str = "") -> Json:
        answer = await self._patient("GET", f"/v1/control/jobs/{job_id}{rest}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def ended(self, job_id: str, seconds: float = 120.0) -> Json:
        deadline = time.monotonic() + seconds
        while (job := await self.get(job_id))["state"] in OPEN:
            assert time.monotonic() < deadline, job
            await asyncio.sleep(0.1)
        return job

    async def results(self, job_id: str) -> list[Json]:
        found: list[Json] = []
        offset: int | None = 0
        while offset is not None:
            page = await self.get(job_id, f"/results?limit=100&offset={offset}")
            found, offset = found + page["results"], page["next_offset"]
        return found

    async def events(self, job_id: str) -> AsyncIterator[Json]:
        path = f"/v1/control/jobs/{job_id}/events"
        async with self.http.stream("GET", path) as answer:
            assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))

    async def _patient(self, method: str, path: str, **options: Any) -> httpx.Response:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                answer = await self.http.request(method, path, **options)
            except httpx.TransportError:
                if time.monotonic() > deadline:
                    raise
            else:
                if answer.status_code < 500 or time.monotonic() > deadline:
                    return answer
            await asyncio.sleep(0.2)

    async def close(self) -> None:
        await self.http.aclose()
