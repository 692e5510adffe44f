from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator

import pytest

from services.sampler.engine.driver import EngineDriver, Output
from services.sampler.ports import EngineDead


class CountingSteps:
    """Each submitted sequence finishes after `length` steps; those in `told` say how many are left meanwhile."""

    def __init__(self) -> None:
        self.left: dict[str, int] = {}
        self.told: set[str] = set()
        self.aborted: list[str] = []
        self.fault: Exception | None = None
        self.hold = threading.Event()
        self.hold.set()
        self.stepping = threading.Event()
        self.closed = False

    def submit(self, sequence_id: str, length: int) -> None:
        if length < 1:
            raise ValueError("length")
        self.left[sequence_id] = length

    def unfinished(self) -> bool:
        return bool(self.left)

    def step(self) -> list[Output]:
        self.stepping.set()
        self.hold.wait(10)
        if self.fault is not None:
            raise self.fault
        self.left = {name: count - 1 for name, count in self.left.items()}
        told = {name: count for name, count in self.left.items() if count <= 0 or name in self.told}
        self.left = {name: count for name, count in self.left.items() if count > 0}
        return [Output(name, count or f"{name} done", not count) for name, count in told.items()]

    def abort(self, sequence_id: str) -> None:
        self.aborted.append(sequence_id)
        self.left.pop(sequence_id, None)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def steps() -> CountingSteps:
    return CountingSteps()


@pytest.fixture
async def driver(steps: CountingSteps) -> AsyncIterator[EngineDriver]:
    made = EngineDriver(lambda: steps, stall_seconds=30)
    await made.start()
    yield made
    steps.hold.set()
    await made.stop(5)


async def run(driver: EngineDriver, steps: CountingSteps, name: str, length: int) -> object:
    return await driver.run(name, lambda: steps.submit(name, length))


def stream(driver: EngineDriver, steps: CountingSteps, name: str, length: int) -> AsyncGenerator[object, None]:
    steps.told.add(name)
    return driver.stream(name, lambda: steps.submit(name, length))


async def inside_a_step(steps: CountingSteps) -> None:
    """The engine's thread is, and what was submitted before waits for it."""
    assert await asyncio.to_thread(steps.stepping.wait, 10)


async def test_sequences_run_together_and_end_with_their_own_output(driver: EngineDriver, steps: CountingSteps) -> None:
    outputs = await asyncio.gather(*(run(driver, steps, f"s{n}", n + 1) for n in range(20)))
    assert outputs == [f"s{n} done" for n in range(20)]


async def test_a_refused_submission_reaches_only_its_caller(driver: EngineDriver, steps: CountingSteps) -> None:
    good = asyncio.create_task(run(driver, steps, "good", 5))
    with pytest.raises(ValueError, match="length"):
        await run(driver, steps, "bad", 0)
    assert await good == "good done"


async def test_a_job_runs_between_steps_and_raises_to_its_caller(driver: EngineDriver, steps: CountingSteps) -> None:
    long = asyncio.create_task(run(driver, steps, "long", 10**6))
    assert await driver.call(lambda: 7) == 7
    with pytest.raises(KeyError):
        await driver.call(lambda: {}["x"])
    long.cancel()
    await asyncio.gather(long, return_exceptions=True)


async def test_cancelling_aborts_in_the_engine(driver: EngineDriver, steps: CountingSteps) -> None:
    long = asyncio.create_task(run(driver, steps, "long", 10**6))
    await driver.call(lambda: None)
    long.cancel()
    await asyncio.gather(long, return_exceptions=True)
    await driver.call(lambda: None)
    assert steps.aborted == ["long"]
    assert not steps.left


async def test_what_is_cancelled_before_its_turn_never_reaches_the_engine(
    driver: EngineDriver, steps: CountingSteps
) -> None:
    submitted: list[str] = []
    steps.hold.clear()
    running = asyncio.create_task(run(driver, steps, "running", 3))
    await inside_a_step(steps)
    early = asyncio.create_task(driver.run("early", lambda: submitted.append("early")))
    await asyncio.sleep(0)
    early.cancel()
    await asyncio.gather(early, return_exceptions=True)
    steps.hold.set()
    assert await running == "running done"
    assert not submitted and not steps.aborted


async def test_a_stream_tells_every_step_beside_those_that_only_end(driver: EngineDriver, steps: CountingSteps) -> None:
    whole = asyncio.create_task(run(driver, steps, "whole", 4))
    assert [output async for output in stream(driver, steps, "s", 4)] == [3, 2, 1, "s done"]
    assert await whole == "whole done"


async def test_a_refused_stream_raises_and_leaves_nothing(driver: EngineDriver, steps: CountingSteps) -> None:
    with pytest.raises(ValueError, match="length"):
        await anext(stream(driver, steps, "s", 0))
    assert await run(driver, steps, "s", 1) == "s done"
    assert not steps.aborted


async def test_closing_a_stream_aborts_it_in_the_engine(driver: EngineDriver, steps: CountingSteps) -> None:
    outputs = stream(driver, steps, "s", 10**6)
    await anext(outputs)
    await outputs.aclose()
    await driver.call(lambda: None)
    assert steps.aborted == ["s"] and not steps.left


async def test_a_stream_cancelled_before_its_turn_leaves_nothing(driver: EngineDriver, steps: CountingSteps) -> None:
    steps.hold.clear()
    running = asyncio.create_task(run(driver, steps, "running", 3))
    await inside_a_step(steps)
    early = asyncio.ensure_future(anext(stream(driver, steps, "early", 10**6)))
    await asyncio.sleep(0)
    early.cancel()
    await asyncio.gather(early, return_exceptions=True)
    steps.hold.set()
    assert await running == "running done"
    await driver.call(lambda: None)
    assert not steps.left


async def test_a_stream_hears_of_the_engines_death(driver: EngineDriver, steps: CountingSteps) -> None:
    outputs = stream(driver, steps, "s", 10**6)
    await anext(outputs)
    steps.fault = RuntimeError("out of memory")
    with pytest.raises(EngineDead, match="out of memory"):
        async for _ in outputs:
            pass


async def test_a_stop_ends_open_and_later_calls(driver: EngineDriver, steps: CountingSteps) -> None:
    long = asyncio.create_task(run(driver, steps, "long", 10**9))
    await driver.call(lambda: None)
    assert await driver.stop(5)
    with pytest.raises(EngineDead, match="stopped"):
        await asyncio.wait_for(long, 5)
    with pytest.raises(EngineDead, match="stopped"):
        await asyncio.wait_for(driver.call(lambda: 1), 5)


async def test_a_dead_engine_fails_open_and_later_calls_with_the_cause(
    driver: EngineDriver, steps: CountingSteps
) -> None:
    steps.hold.clear()
    open_calls = [asyncio.create_task(run(driver, steps, f"s{n}", 5)) for n in range(3)]
    await inside_a_step(steps)
    steps.fault = RuntimeError("out of memory")
    steps.hold.set()
    results = await asyncio.gather(*open_calls, return_exceptions=True)
    assert all(isinstance(result, EngineDead) and "out of memory" in str(result) for result in results)
    with pytest.raises(EngineDead, match="out of memory"):
        await driver.call(lambda: 1)
    assert "out of memory" in str(await driver.wait_dead())


async def test_an_engine_that_stops_stepping_is_dead_SAMP_06(steps: CountingSteps) -> None:
    driver = EngineDriver(lambda: steps, stall_seconds=0.05)
    await driver.start()
    steps.hold.clear()
    hanging = asyncio.create_task(run(driver, steps, "s", 5))
    async with asyncio.timeout(5):
        cause = await driver.wait_dead()
    assert "stage engine step: no step for" in cause.message
    with pytest.raises(EngineDead, match="no step"):
        await hanging
    assert not await driver.stop(0.05)
    steps.hold.set()


async def test_an_idle_engine_is_not_taken_for_dead(steps: CountingSteps) -> None:
    driver = EngineDriver(lambda: steps, stall_seconds=0.01)
    await driver.start()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(driver.wait_dead(), 1.3)
    assert await driver.stop(5)
    assert steps.closed


async def test_a_failed_start_is_raised() -> None:
    def build() -> CountingSteps:
        raise OSError("no such model")

    with pytest.raises(OSError, match="no such model"):
        await EngineDriver(build, stall_seconds=1).start()
