"""Calls to the scheduler while a replica is away, or there and silent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from services.common.errors import InvalidInput, Unavailable
from services.gateway.upstream.retry import Retry
from tests.doubles.eventually import eventually

Attempt = Callable[[float], Awaitable[str]]


class Replicas:
    """One behaviour per attempt, in turn; the last one stays."""

    def __init__(self, *behaviours: Attempt) -> None:
        self._behaviours = behaviours
        self.attempts = 0
        self.cancelled = 0

    async def __call__(self, timeout: float) -> str:
        behaviour = self._behaviours[min(self.attempts, len(self._behaviours) - 1)]
        self.attempts += 1
        try:
            return await behaviour(timeout)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


async def answers(timeout: float) -> str:
    return "answer"


async def hangs(timeout: float) -> str:
    await asyncio.sleep(timeout)
    raise Unavailable("deadline exceeded")


async def away(timeout: float) -> str:
    raise Unavailable("away")


async def refuses(timeout: float) -> str:
    raise InvalidInput("seq_id: no")


def retry(**options: float) -> Retry:
    return Retry(**{"rpc_seconds": 10.0, "total_seconds": 15.0, "hedge_seconds": 0.02, **options})  # type: ignore[arg-type]


async def test_a_replica_that_hangs_does_not_hold_a_repeatable_call_FAIL_14() -> None:
    replicas = Replicas(hangs, answers)
    patient = retry(rpc_seconds=3600.0, total_seconds=3600.0)
    assert await asyncio.wait_for(patient.call(replicas, hedged=True), 20) == "answer"
    await asyncio.sleep(0)
    assert (replicas.attempts, replicas.cancelled) == (2, 1)


async def test_the_second_attempt_may_meet_the_hanging_replica_too() -> None:
    replicas = Replicas(hangs, hangs, answers)
    assert await retry().call(replicas, hedged=True) == "answer"
    await asyncio.sleep(0)
    assert (replicas.attempts, replicas.cancelled) == (3, 2)


async def test_a_call_that_must_not_be_doubled_waits_for_its_one_attempt() -> None:
    replicas = Replicas(hangs, answers)
    assert await retry(rpc_seconds=0.2).call(replicas) == "answer"
    assert (replicas.attempts, replicas.cancelled) == (2, 0)


async def test_a_swift_answer_takes_one_attempt() -> None:
    replicas = Replicas(answers)
    assert await retry(hedge_seconds=5.0).call(replicas, hedged=True) == "answer"
    assert replicas.attempts == 1


async def test_a_refusal_is_final_and_ends_the_other_attempts() -> None:
    replicas = Replicas(hangs, refuses)
    with pytest.raises(InvalidInput):
        await retry().call(replicas, hedged=True)
    await asyncio.sleep(0)
    assert (replicas.attempts, replicas.cancelled) == (2, 1)


async def test_an_attempt_that_finds_its_replica_away_leaves_the_answer_to_the_others() -> None:
    found_away = asyncio.Event()

    async def slow(timeout: float) -> str:
        await found_away.wait()
        return "late answer"

    async def away_first(timeout: float) -> str:
        found_away.set()
        raise Unavailable("away")

    replicas = Replicas(slow, away_first, hangs)
    assert await retry().call(replicas, hedged=True) == "late answer"
    assert replicas.attempts == 2


async def test_a_caller_that_leaves_takes_its_attempts_along() -> None:
    replicas = Replicas(hangs)
    call = asyncio.create_task(retry().call(replicas, hedged=True))
    await eventually(lambda: replicas.attempts == 3)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.sleep(0)
    assert replicas.cancelled == 3


async def test_an_overload_is_not_doubled_by_second_attempts() -> None:
    replicas = Replicas(hangs)
    shared = retry(max_hedges=4)
    calls = [asyncio.create_task(shared.call(replicas, hedged=True)) for _ in range(20)]
    await eventually(lambda: replicas.attempts == 24)
    with pytest.raises(AssertionError):  # and no more, for ten times what calls 21 to 24 waited
        await eventually(lambda: replicas.attempts > 24, 0.2)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert shared.hedges == 0


async def test_an_answer_counts_though_another_attempt_fails_in_the_same_moment() -> None:
    both = asyncio.Event()

    async def away_then(timeout: float) -> str:
        await both.wait()
        raise Unavailable("away")

    async def answer_then(timeout: float) -> str:
        both.set()
        return "answer"

    assert await retry().call(Replicas(away_then, answer_then), hedged=True) == "answer"


async def test_a_call_that_is_long_by_its_size_is_not_doubled_for_that() -> None:
    async def slow(timeout: float) -> str:
        await asyncio.sleep(0.1)
        return "answer"

    replicas = Replicas(slow)
    assert await retry().call(replicas, hedged=True, busy_seconds=5.0) == "answer"
    assert replicas.attempts == 1
