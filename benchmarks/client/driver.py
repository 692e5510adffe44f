"""What a client process can be told to do; every public coroutine is one command (see __main__)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import replace
from urllib.parse import urlsplit

from benchmarks.client.gateway import Gateway
from benchmarks.client.heartbeats import Heartbeats
from benchmarks.client.model import Model, open_model
from benchmarks.client.sampling import sample
from benchmarks.client.wakeups import Wakeups
from benchmarks.datums import datum, draw

MILLISECONDS = 1000.0
FLOOD_VOCABULARY = 512


class Driver:
    """Models are opened once and used by every later command."""

    def __init__(self, base_url: str, keys: list[str]) -> None:
        address = urlsplit(base_url)
        self._gateways = [Gateway(address.hostname or "", address.port or 80, key) for key in keys]
        self._models: list[Model] = []
        self._base_model = ""
        self._heartbeats: Heartbeats | None = None
        self._wakeups: Wakeups | None = None

    async def open(
        self, base_model: str, vocabulary: int, models: int, tokens: int, datums: int = 1, rank: int = 8
    ) -> None:
        """`models` sessions with one model each, in turns over the keys; every batch has its own tokens."""
        self._base_model = base_model
        for number in range(models):
            gateway = self._gateways[number % len(self._gateways)]
            batch = [datum(row) for row in draw(datums, tokens, vocabulary, seed=number)]
            self._models.append(await open_model(gateway, base_model, batch, rank))

    async def latency(self, operations: int) -> dict[str, list[float]]:
        """One client: milliseconds from the POST to the delivered result, and to the POST's own answer."""
        model, times = self._models[0], _Times()
        for _ in range(operations):
            await times.take("forward_backward", model.post_forward_backward(), model.gateway)
            await times.take("optim_step", model.post_optim_step(), model.gateway)
        return times.milliseconds

    async def throughput(self, seconds: float, warmup: float = 0.5) -> dict[str, list[float]]:
        """All models at once, each awaiting its own operations: completed ones per second, and their latencies."""
        begin = time.perf_counter() + warmup
        end, latencies = begin + seconds, list[float]()
        await asyncio.gather(*(self._work(model, begin, end, latencies) for model in self._models))
        return {"rate": [len(latencies) / seconds], "latencies": latencies}

    async def _work(self, model: Model, begin: float, end: float, latencies: list[float]) -> None:
        while (started := time.perf_counter()) < end:
            request_id = await (model.post_optim_step() if model.next_seq % 2 == 0 else model.post_forward_backward())
            answer = await model.gateway.result(request_id)
            if begin <= answer.at < end:
                latencies.append((answer.at - started) * MILLISECONDS)

    async def steps(self, count: int, together: bool) -> float:
        """Seconds for `count` steps (forward_backward and optim_step) of every model, at once or one model by one."""
        started = time.perf_counter()
        if together:
            await asyncio.gather(*(_steps(model, count) for model in self._models))
        else:
            for model in self._models:
                await _steps(model, count)
        return time.perf_counter() - started

    async def turns(self, count: int) -> list[list[float]]:
        """One model after the other does `count` steps; the seconds of each of them, by model."""
        return [[await _seconds(model.step()) for _ in range(count)] for model in self._models]

    async def solo(
        self, base_model: str, vocabulary: int, tokens: int, number: int, steps: int, checkpoint: str
    ) -> str:
        """A twin of the `number`-th model of `open` does its steps without a pause; the path of its checkpoint."""
        batch = [datum(row) for row in draw(1, tokens, vocabulary, seed=number)]
        twin = await open_model(self._gateways[0], base_model, batch)
        await _steps(twin, steps)
        path = await twin.save(checkpoint)
        await twin.finish()
        return path

    async def save(self, checkpoint: str) -> list[str]:
        """The path of a checkpoint of every model."""
        return [await model.save(checkpoint) for model in self._models]

    async def flood(self, model: int, requests: int, datums: int, tokens: int) -> list[str]:
        """Leaves `requests` batches of a model in its queue; answers their request ids."""
        flooding = self._models[model]
        batch = [datum(row) for row in draw(datums, tokens, FLOOD_VOCABULARY, seed=model)]
        return [
            await replace(flooding, batch=batch, next_seq=flooding.take_seq()).post_forward_backward()
            for _ in range(requests)
        ]

    async def one_batch(self, model: int) -> list[float]:
        """Milliseconds from the POST of one batch of a model to its delivered result."""
        started = time.perf_counter()
        answer = await self._models[model].forward_backward()
        return [(answer.at - started) * MILLISECONDS]

    async def finish(self) -> None:
        """Ends every session: the slots are free soon after."""
        for model in self._models:
            await model.finish()

    async def samples(self, tokens: int) -> None:
        """Every model's session samples `tokens` tokens from the base model, all at once."""
        await asyncio.gather(*(sample(model, self._base_model, tokens) for model in self._models))

    async def start_heartbeats(self, period: float) -> None:
        self._heartbeats = Heartbeats(self._models, period)
        self._heartbeats.start()

    async def stop_heartbeats(self) -> int:
        """How many were answered."""
        assert self._heartbeats is not None
        return await self._heartbeats.stop()

    async def open_polls(self, count: int, ramp: float, redis_url: str) -> None:
        """`count` long polls on commands of the last model that stay queued, opened over `ramp` seconds."""
        self._wakeups = Wakeups(redis_url, waiting=self._models[-1], probe=self._models[0])
        await self._wakeups.open(count, ramp)

    async def wakeups(self, times: int) -> list[float]:
        """Milliseconds from a settlement's publication to the delivered result of its poll."""
        assert self._wakeups is not None
        return await self._wakeups.measure(times)

    async def close(self) -> None:
        if self._wakeups is not None:
            await self._wakeups.close()
        for gateway in self._gateways:
            gateway.close()


async def _seconds(work: Awaitable[object]) -> float:
    started = time.perf_counter()
    await work
    return time.perf_counter() - started


async def _steps(model: Model, count: int) -> None:
    for _ in range(count):
        await model.step()


class _Times:
    def __init__(self) -> None:
        self.milliseconds: dict[str, list[float]] = {}

    async def take(self, name: str, submission: Awaitable[str], gateway: Gateway) -> None:
        started = time.perf_counter()
        request_id = await submission
        posted = time.perf_counter()
        answer = await gateway.result(request_id)
        self._add(name, answer.at - started)
        self._add(f"{name} posted", posted - started)

    def _add(self, name: str, seconds: float) -> None:
        self.milliseconds.setdefault(name, []).append(seconds * MILLISECONDS)
