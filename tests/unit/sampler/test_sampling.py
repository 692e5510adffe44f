"""Runs by request id, results, and what happens when the engine misbehaves; on a double."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tinkermesh.v1.sampler_pb2 import SampleRequest
from tinkermesh.v1.types_pb2 import AdapterRef

from services.common.errors import Busy, InvalidInput, KeyConflict, ServerError, TinkermeshError, Unavailable
from services.sampler.adapter_files import AdapterFiles
from services.sampler.adapter_table import AdapterTable
from services.sampler.ports import GeneratedSequence
from services.sampler.results import build_result
from services.sampler.runs import SampleRuns
from services.sampler.sampling import Sampling
from services.sampler.sampling_plan import Limits
from tests.unit.sampler.doubles import LINEAR, FakeEngine, write_adapter
from tests.unit.sampler.test_sampling_plan import body

LIMITS = Limits(vocab_size=100, max_context=50, max_topk=20)


@pytest.fixture
async def engine() -> FakeEngine:
    return FakeEngine()


def sampling(engine: FakeEngine, store: Path, *, timeout: float = 5.0, max_waiting: int = 100) -> Sampling:
    table = AdapterTable(engine, AdapterFiles(LINEAR, 32), store, 2)
    return Sampling(engine, table, LIMITS, max_waiting=max_waiting, timeout_seconds=timeout)


def request(request_id: str = "r1", **fields: object) -> SampleRequest:
    return SampleRequest(request_id=request_id, body=body(**fields))


async def until(condition: object) -> None:
    async with asyncio.timeout(5):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.001)


async def test_an_adapter_is_pinned_until_the_last_sequence_is_out(engine: FakeEngine, tmp_path: Path) -> None:
    write_adapter(tmp_path / "m")
    table = AdapterTable(engine, AdapterFiles(LINEAR, 32), tmp_path, 2)
    work = Sampling(engine, table, LIMITS, max_waiting=10, timeout_seconds=5)
    engine.gate.clear()
    message = SampleRequest(request_id="r", adapter=AdapterRef(name="m@1", path="m"), body=body(num_samples=2))
    running = asyncio.create_task(work.run(message))
    await until(lambda: engine.running == 2)
    assert table.residents()[0][0].in_use == 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert sorted(event for event in engine.events if event.startswith("abort")) == ["abort r/0", "abort r/1"]
    assert table.residents()[0][0].in_use == 0


async def test_a_hanging_engine_fails_the_sample_with_the_stage_SAMP_06(engine: FakeEngine, tmp_path: Path) -> None:
    engine.gate.clear()
    with pytest.raises(Unavailable, match="stage generating: the sample was not finished"):
        await sampling(engine, tmp_path, timeout=0.05).run(request())
    assert engine.running == 0


async def test_more_than_the_queue_holds_is_busy_SAMP_12(engine: FakeEngine, tmp_path: Path) -> None:
    engine.gate.clear()
    work = sampling(engine, tmp_path, max_waiting=3)
    first = asyncio.create_task(work.run(request("a", num_samples=2)))
    await until(lambda: engine.running == 2)
    with pytest.raises(Busy, match="holds 2 unfinished"):
        await work.run(request("b", num_samples=2))
    engine.gate.set()
    await first
    await work.run(request("b", num_samples=3))


@pytest.mark.parametrize("finish", ["abort", "error", "repetition", "None"])
async def test_an_incomplete_output_is_never_a_finished_sample_SAMP_08(
    engine: FakeEngine, tmp_path: Path, finish: str
) -> None:
    engine.finish = finish
    with pytest.raises(Unavailable, match="stage generating"):
        await sampling(engine, tmp_path).run(request())


async def test_a_repeat_attaches_and_another_body_conflicts(engine: FakeEngine, tmp_path: Path) -> None:
    engine.gate.clear()
    runs = SampleRuns(sampling(engine, tmp_path), orphan_seconds=5)
    first = asyncio.create_task(runs.result(request()))
    await until(lambda: engine.running == 1)
    second = asyncio.create_task(runs.result(request()))
    with pytest.raises(KeyConflict):
        await runs.result(request(max_tokens=3))
    engine.gate.set()
    assert await first == await second
    assert len(runs) == 0


async def test_an_orphan_is_adopted_by_its_next_caller(engine: FakeEngine, tmp_path: Path) -> None:
    engine.gate.clear()
    runs = SampleRuns(sampling(engine, tmp_path), orphan_seconds=5)
    first = asyncio.create_task(runs.result(request()))
    await until(lambda: engine.running == 1)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert engine.running == 1
    engine.gate.set()
    await until(lambda: engine.running == 0)
    assert len((await runs.result(request())).sequences) == 1  # finished while nobody was there
    assert engine.events == []
    assert len(runs) == 0


async def test_an_orphan_nobody_adopts_is_aborted(engine: FakeEngine, tmp_path: Path) -> None:
    engine.gate.clear()
    runs = SampleRuns(sampling(engine, tmp_path), orphan_seconds=0.05)
    first = asyncio.create_task(runs.result(request()))
    await until(lambda: engine.running == 1)
    first.cancel()
    await until(lambda: engine.running == 0)
    assert len(runs) == 0


async def test_abort_fails_every_caller(engine: FakeEngine, tmp_path: Path) -> None:
    engine.gate.clear()
    runs = SampleRuns(sampling(engine, tmp_path), orphan_seconds=5)
    callers = [asyncio.create_task(runs.result(request())) for _ in range(3)]
    await until(lambda: engine.running == 1)
    assert runs.abort("r1")
    results = await asyncio.gather(*callers, return_exceptions=True)
    assert all(isinstance(result, Unavailable) and "aborted" in str(result) for result in results)
    assert not runs.abort("r1")
    assert engine.running == 0


def sequence(**changes: object) -> GeneratedSequence:
    made = GeneratedSequence(
        np.asarray([4, 5], np.int32), np.asarray([-1, -2], np.float32), "stop", None, None, None, 7
    )
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"tokens": np.zeros(0, np.int32), "logprobs": np.zeros(0, np.float32)}, ServerError),  # SAMP-06
        ({"logprobs": np.asarray([-1], np.float32)}, ServerError),  # SAMP-09
        ({"logprobs": np.asarray([-1, np.nan], np.float32)}, InvalidInput),
        ({"prompt_logprobs": np.asarray([np.nan, -1, np.nan], np.float32)}, InvalidInput),
        ({"finish": "abort"}, Unavailable),
    ],
)
def test_an_output_that_is_not_whole_is_refused_SAMP_09(
    changes: dict[str, object], kind: type[TinkermeshError]
) -> None:
    with pytest.raises(kind):
        build_result(body(), [sequence(), sequence(**changes)])


def test_a_whole_output_is_passed_on_in_order() -> None:
    result = build_result(body(), [sequence(), sequence(finish="length")])
    assert [made.stopped for made in result.sequences] == [True, False]
    assert np.frombuffer(result.sequences[0].tokens, "<i4").tolist() == [4, 5]
    assert result.prompt_cache_hit_tokens == 7
    assert not result.HasField("prompt_logprobs")
