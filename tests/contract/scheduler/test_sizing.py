"""docs/sizing.md's formulas of Redis, against what a real server grows by."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from redis.asyncio import Redis

from services.scheduler.store import keys
from tests.contract.scheduler.requests import new_session
from tests.contract.scheduler.rig import Mesh, running_mesh
from tests.contract.scheduler.test_causes import failing
from tests.contract.scheduler.test_curves import first_steps, steps
from tests.contract.scheduler.test_training_functions import MODEL, Bench, bench
from tests.doubles.sizing import bytes_of, memory_of_keys
from tests.doubles.valkey import ValkeyProcess

__all__ = ["bench"]
MODELS, EACH = 4, 30
SMALL, LARGE = (8,), (512,) * 4


@pytest.fixture
async def mesh(valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path) -> AsyncIterator[Mesh]:
    """With its library loaded and a command of every kind behind it: what is measured is what one more takes."""
    async with running_mesh(valkey.url, tmp_path, slots=16) as running:
        model = await running.opened(new_session())
        await running.done(await running.batch(model, 1))
        await running.done(await running.step(model, 2))
        yield running


def payload_of(lengths: Sequence[int]) -> float:
    return bytes_of("payload of a batch", tokens=sum(lengths), targets=1, fields=1)


async def sent(mesh: Mesh, models: list[str], first: int, lengths: Sequence[int]) -> list[str]:
    return [await mesh.batch(model, first + n, lengths) for n in range(EACH) for model in models]


@pytest.mark.parametrize("lengths", [SMALL, LARGE])
async def test_open_and_settled_futures_and_their_log(mesh: Mesh, lengths: Sequence[int]) -> None:
    """What is open takes at most what the formula says, and not much less; so does what has settled."""
    models = [await mesh.opened(new_session()) for _ in range(MODELS)]
    held = mesh.trainer.faults.add("hold_before", "pass", times=0)
    payload, count = payload_of(lengths), MODELS * EACH
    before = await memory_of_keys(mesh.redis)
    requests = await sent(mesh, models, 1, lengths)
    while_open = (await memory_of_keys(mesh.redis) - before) / count
    assert 0.5 <= while_open / bytes_of("open future", payload=payload) <= 1.0
    mesh.trainer.faults.remove(held)
    for request in requests:
        await mesh.done(request)
    settled = (await memory_of_keys(mesh.redis) - before) / count
    expected = bytes_of("settled future", tokens=sum(lengths)) + bytes_of("log entry", payload=payload)
    assert 0.5 <= settled / expected <= 1.0


async def test_a_payload_is_most_of_a_large_future_and_none_of_it_may_be_forgotten(mesh: Mesh) -> None:
    """Negative control: a formula for half the tokens does not hold."""
    model = await mesh.opened(new_session())
    mesh.trainer.faults.add("hold_before", "pass", times=0)
    before = await memory_of_keys(mesh.redis)
    await sent(mesh, [model], 1, LARGE)
    half = bytes_of("open future", payload=payload_of(LARGE) / 2)
    assert (await memory_of_keys(mesh.redis) - before) / EACH > half
    mesh.trainer.faults.rules.clear()


async def test_a_live_model(mesh: Mesh) -> None:
    count = 12
    before = await memory_of_keys(mesh.redis)
    for _ in range(count):
        await mesh.opened(new_session())
    each = (await memory_of_keys(mesh.redis) - before) / count
    assert 0.2 <= each / bytes_of("live model") <= 1.0


async def memory_of(bench: Bench, key: str) -> int:
    return int(await bench.redis.memory_usage(key, samples=0) or 0)


@pytest.mark.parametrize("points", [10, 255])
async def test_a_loss_curve(bench: Bench, points: int) -> None:
    """Its list, and what a model's row holds more of than before its first step."""
    before = await memory_of(bench, keys.model("p", MODEL))
    await first_steps(bench)
    await steps(bench, 2, points - 1)
    row = await memory_of(bench, keys.model("p", MODEL)) - before
    taken = row + await memory_of(bench, keys.curve("p", MODEL))
    assert 0.5 <= taken / bytes_of("loss curve", points=points) <= 1.0


async def test_recent_failures(bench: Bench) -> None:
    await failing(bench, [f"{number}" + "x" * 2000 for number in range(60)])
    taken = await memory_of(bench, keys.causes("p", "tenant"))
    assert 0.5 <= taken / (50 * bytes_of("recent failure")) <= 1.0
