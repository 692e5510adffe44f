"""Streams on a double of the engine: what is told, who gets it, and what never counts as an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1.types_pb2 import AdapterRef, StopCondition

from services.common.errors import (
    AdapterNotLoaded,
    Busy,
    CacheNotReady,
    InvalidInput,
    KeyConflict,
    ServerError,
    Unavailable,
)
from services.sampler.adapter_files import AdapterFiles
from services.sampler.adapter_table import AdapterTable
from services.sampler.ports import EngineDead
from services.sampler.runs import SampleRuns
from services.sampler.sampling import Sampling
from services.sampler.sampling_plan import Limits
from tests.unit.sampler.doubles import LINEAR, FakeEngine, write_adapter
from tests.unit.sampler.test_sampling import until
from tests.unit.sampler.test_sampling_plan import body

LIMITS = Limits(vocab_size=512, max_context=50, max_topk=20)


@pytest.fixture
async def engine() -> FakeEngine:
    return FakeEngine()


def runs_of(
    engine: FakeEngine, store: Path, *, role: str = "both", orphan: float = 5.0, **options: float
) -> SampleRuns:
    table = AdapterTable(engine, AdapterFiles(LINEAR, 32), store, 2, role=role)
    limits = {"max_waiting": 100, "timeout_seconds": 5.0, **options}
    return SampleRuns(Sampling(engine, table, LIMITS, role=role, **limits), orphan)  # type: ignore[arg-type]


def request(
    request_id: str = "r", *, seam: int = 0, leg: pb.Leg = pb.LEG_WHOLE, text: bool = True, **fields: object
) -> pb.SampleStreamRequest:
    sample = pb.SampleRequest(request_id=request_id, body=body(**fields), leg=leg)
    return pb.SampleStreamRequest(sample=sample, with_text=text, seam_tokens=seam)


async def chunks(told: AsyncIterator[pb.SampleChunk]) -> list[pb.SampleChunk]:
    return [chunk async for chunk in told]


def ids(told: list[pb.SampleChunk], sequence: int = 0) -> list[int]:
    return np.frombuffer(b"".join(c.tokens for c in told if c.sequence == sequence), "<i4").tolist()


def text(told: list[pb.SampleChunk]) -> str:
    return "".join(chunk.text for chunk in told)


async def test_every_token_comes_with_its_logprob_and_one_finish_per_sequence_SAMP_09(
    engine: FakeEngine, tmp_path: Path
) -> None:
    told = await chunks(runs_of(engine, tmp_path).chunks(request(num_samples=3, max_tokens=4, text=False)))
    for sequence in range(3):
        mine = [chunk for chunk in told if chunk.sequence == sequence]
        assert ids(mine, sequence) == [0, 1, 2, 3]
        scores = np.frombuffer(b"".join(chunk.logprobs for chunk in mine), "<f4")
        assert scores.tolist() == [-0.5, -1.5, -2.5, -3.5]
        assert [chunk.finish for chunk in mine] == ["", "", "", "length"]
        assert [chunk.cached_tokens for chunk in mine] == [3, 0, 0, 0]
    assert not text(told)
    assert engine.running == 0 and not engine.events


async def test_text_is_of_whole_characters_without_special_tokens(engine: FakeEngine, tmp_path: Path) -> None:
    engine.script, engine.finish = [*"é👋".encode(), 0], "stop"
    told = await chunks(runs_of(engine, tmp_path).chunks(request()))
    assert [chunk.text for chunk in told] == ["", "é", "", "", "", "👋", ""]
    assert ids(told) == engine.script


async def test_what_is_held_back_comes_with_the_finish(engine: FakeEngine, tmp_path: Path) -> None:
    engine.script = list(b"okST")
    told = await chunks(runs_of(engine, tmp_path).chunks(request(stop=StopCondition(strings=["STOP"]))))
    assert [chunk.text for chunk in told] == ["o", "k", "", "ST"]


async def test_a_prefill_leg_keeps_back_what_the_decode_leg_tells_PDR_14(engine: FakeEngine, tmp_path: Path) -> None:
    stop = StopCondition(strings=["STOP"])
    runs = runs_of(engine, tmp_path)
    engine.script = [ord("S")]
    first = await chunks(runs.chunks(request("p", leg=pb.LEG_PREFILL, max_tokens=1, stop=stop)))
    engine.script = list(b"TAR")
    prompt = np.array([1, 2, 3, ord("S")], "<i4").tobytes()
    second = await chunks(runs.chunks(request("d", leg=pb.LEG_DECODE, seam=1, prompt_tokens=prompt, stop=stop)))
    assert (text(first), text(second)) == ("", "STAR")


async def test_tokens_after_the_one_that_completes_a_stop_string_are_not_told(
    engine: FakeEngine, tmp_path: Path
) -> None:
    """Also of those that come together with it."""
    engine.script, engine.per_delta = list(b"aSTOPbcdef"), 4
    told = await chunks(runs_of(engine, tmp_path).chunks(request(stop=StopCondition(strings=["STOP"]))))
    assert ids(told) == list(b"aSTOP") and text(told) == "a"
    assert np.frombuffer(b"".join(chunk.logprobs for chunk in told), "<f4").tolist() == [-0.5, -1.5, -2.5, -3.5, -4.5]
    assert engine.events == ["abort r/0"]


@pytest.mark.parametrize("with_text", [True, False])
async def test_a_stop_string_that_begins_before_the_seam_ends_the_decode_leg_PDR_14(
    engine: FakeEngine, tmp_path: Path, *, with_text: bool
) -> None:
    """The engine, which takes the seam for prompt, would go on; its sequence is aborted."""
    engine.script = list(b"TOPmore")
    prompt = np.array([1, 2, 3, ord("S")], "<i4").tobytes()
    asked = request(
        leg=pb.LEG_DECODE, seam=1, prompt_tokens=prompt, stop=StopCondition(strings=["STOP"]), text=with_text
    )
    told = await chunks(runs_of(engine, tmp_path).chunks(asked))
    assert ids(told) == list(b"TOP") and told[-1].finish == "stop" and not text(told)
    assert engine.events == ["abort r/0"]


async def test_the_engine_alone_decides_on_stops_when_nobody_reads_text(engine: FakeEngine, tmp_path: Path) -> None:
    engine.script = list(b"aSTOPb")
    asked = request(stop=StopCondition(strings=["STOP"]), text=False)
    assert ids(await chunks(runs_of(engine, tmp_path).chunks(asked))) == engine.script


async def test_a_repeat_gets_everything_from_the_start_IDEM_04(engine: FakeEngine, tmp_path: Path) -> None:
    engine.gate.clear()
    engine.told = 2
    runs = runs_of(engine, tmp_path)
    first = runs.chunks(request(max_tokens=5))
    early = [await anext(first), await anext(first)]
    second = asyncio.create_task(chunks(runs.chunks(request(max_tokens=5))))
    with pytest.raises(KeyConflict):
        await anext(runs.chunks(request(max_tokens=6)))
    with pytest.raises(KeyConflict):
        await runs.result(request(max_tokens=5).sample)  # whole is another question than told
    engine.gate.set()
    whole = early + await chunks(first)
    assert whole == await second
    assert ids(whole) == [0, 1, 2, 3, 4]
    assert engine.running == 0 and len(runs) == 0


async def test_who_leaves_alone_takes_nothing_from_the_others(engine: FakeEngine, tmp_path: Path) -> None:
    engine.gate.clear()
    engine.told = 1
    runs = runs_of(engine, tmp_path, orphan=0.0)
    leaving, staying = runs.chunks(request(max_tokens=3)), runs.chunks(request(max_tokens=3))
    await anext(leaving)
    await anext(staying)
    await leaving.aclose()
    for _ in range(5):
        await asyncio.sleep(0)
    engine.gate.set()
    assert ids(await chunks(staying)) == [1, 2]
    assert not engine.events


async def test_an_orphan_is_adopted_or_aborted_after_its_time(engine: FakeEngine, tmp_path: Path) -> None:
    engine.gate.clear()
    engine.told = 1
    runs = runs_of(engine, tmp_path, orphan=0.05)
    for adopted in (True, False):
        engine.gate.clear()
        call = runs.chunks(request(max_tokens=3))
        await anext(call)
        await call.aclose()
        if adopted:
            again = runs.chunks(request(max_tokens=3))
            await anext(again)
            engine.gate.set()
            assert len(await chunks(again)) == 2
    await until(lambda: engine.running == 0)
    assert engine.events == ["abort r/0"]
    assert len(runs) == 0


async def test_abort_fails_every_caller_at_once_after_what_came_before(engine: FakeEngine, tmp_path: Path) -> None:
    engine.gate.clear()
    engine.told = 2
    runs = runs_of(engine, tmp_path)
    calls = [runs.chunks(request(max_tokens=5)) for _ in range(2)]
    for call in calls:
        await anext(call)
    assert runs.abort("r")
    assert ids([await anext(calls[0])]) == [1]
    for call in calls:
        with pytest.raises(Unavailable, match="r was aborted"):
            await chunks(call)
    assert engine.running == 0 and engine.events == ["abort r/0"] and len(runs) == 0


async def test_the_first_failure_stops_all_sequences(engine: FakeEngine, tmp_path: Path) -> None:
    engine.gate.clear()
    call = asyncio.create_task(chunks(runs_of(engine, tmp_path).chunks(request(num_samples=3))))
    await until(lambda: engine.running == 3)
    engine.dead.set_result(EngineDead("stage engine step: the engine died: boom"))
    with pytest.raises(EngineDead, match="boom"):
        await call
    assert engine.running == 0


@pytest.mark.parametrize("finish", ["abort", "error", "None"])
async def test_an_output_that_was_cut_off_is_no_finish_SAMP_08(engine: FakeEngine, tmp_path: Path, finish: str) -> None:
    engine.finish = finish
    with pytest.raises(Unavailable, match="stage generating: the engine ended a sequence with"):
        await chunks(runs_of(engine, tmp_path).chunks(request()))


async def test_what_the_engine_raises_behind_its_finish_fails_the_stream_PDR_17(
    engine: FakeEngine, tmp_path: Path
) -> None:
    """A prefill leg tells its token at once, and fails when its blocks are not saved."""
    engine.failure = CacheNotReady("stage kv save: 3 blocks of the prompt are not in the tier")
    call = runs_of(engine, tmp_path).chunks(request(leg=pb.LEG_PREFILL, max_tokens=1))
    first = await anext(call)
    assert (ids([first]), first.finish) == ([0], "length")
    with pytest.raises(CacheNotReady, match="stage kv save"):
        await anext(call)


async def test_a_sequence_that_was_cut_off_fails_with_the_engines_cause_PDR_17(
    engine: FakeEngine, tmp_path: Path
) -> None:
    """Of a decode leg whose blocks are gone: another type would have its sampler taken for dead."""
    engine.finish, engine.failure = "error", CacheNotReady("stage kv transfer: block 12 is refused")
    with pytest.raises(CacheNotReady, match="stage kv transfer"):
        await chunks(runs_of(engine, tmp_path).chunks(request(leg=pb.LEG_DECODE)))


async def test_a_stream_without_a_finish_is_an_error_with_its_cause_SAMP_06(engine: FakeEngine, tmp_path: Path) -> None:
    engine.finish = ""
    with pytest.raises(ServerError, match="ended sequence 0 after 10 tokens without a finish"):
        await chunks(runs_of(engine, tmp_path).chunks(request()))


async def test_a_hanging_engine_fails_the_stream_with_the_stage_SAMP_06(engine: FakeEngine, tmp_path: Path) -> None:
    engine.gate.clear()
    engine.told = 2
    call = runs_of(engine, tmp_path, timeout_seconds=0.1).chunks(request())
    assert ids([await anext(call), await anext(call)]) == [0, 1]
    with pytest.raises(Unavailable, match="stage generating: the sample was not finished after 0.1 s"):
        await anext(call)
    assert engine.running == 0


async def test_more_than_the_queue_holds_is_busy_SAMP_12(engine: FakeEngine, tmp_path: Path) -> None:
    engine.gate.clear()
    runs = runs_of(engine, tmp_path, max_waiting=3)
    call = asyncio.create_task(chunks(runs.chunks(request("a", num_samples=2))))
    await until(lambda: engine.running == 2)
    with pytest.raises(Busy, match="holds 2 unfinished"):
        await chunks(runs.chunks(request("b", num_samples=2)))
    engine.gate.set()
    await call


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("streamed", [True, False])
async def test_a_leg_refuses_an_adapter_it_has_not_loaded_at_once_SAMP_02(
    engine: FakeEngine, tmp_path: Path, role: str, *, streamed: bool
) -> None:
    """Nor while it is being loaded: nothing waits for a load there, and nothing begins one."""
    write_adapter(tmp_path / "m")
    runs = runs_of(engine, tmp_path, role=role)
    table: AdapterTable = runs._work._admission._adapters  # type: ignore[attr-defined]
    asked = request(text=False)
    asked.sample.adapter.CopyFrom(AdapterRef(name="m@1", path="m"))

    async def answered() -> None:
        await (chunks(runs.chunks(asked)) if streamed else runs.result(asked.sample))

    remedy = "m@1 is not loaded on this .* sampler.*scheduler's Admin.LoadAdapter or each sampler's LoadAdapter.*path m"
    with pytest.raises(AdapterNotLoaded, match=remedy):
        await answered()
    assert engine.events == []
    engine.load_gate.clear()
    load = asyncio.create_task(table.load("m@1", "m"))
    await until(lambda: engine.events == ["add m@1"])
    with pytest.raises(AdapterNotLoaded):
        await answered()
    engine.load_gate.set()
    await load
    await answered()
    await table.unload("m@1")
    with pytest.raises(AdapterNotLoaded):
        await answered()
    assert engine.events == ["add m@1", "remove m@1"]


TWO = np.array([1, 2], "<i4").tobytes()


@pytest.mark.parametrize(
    ("role", "changes", "named"),
    [
        ("both", {"leg": pb.LEG_PREFILL, "max_tokens": 2}, "max_tokens is 2; a prefill leg generates 1"),
        ("both", {"leg": pb.LEG_DECODE, "prompt_tokens": TWO[:4]}, "prompt_tokens of a decode leg"),
        ("both", {"leg": pb.LEG_DECODE, "num_samples": 2}, "num_samples is 2"),
        ("prefill", {"leg": pb.LEG_DECODE}, "leg is LEG_DECODE; this sampler's role is prefill"),
        ("decode", {"leg": pb.LEG_PREFILL, "max_tokens": 1}, "leg is LEG_PREFILL; this sampler's role is decode"),
        ("both", {"seam": 4}, "seam_tokens is 4; the prompt has 3"),
        ("both", {"prompt_logprobs": True}, "prompt_logprobs is not told by a stream; use Sample"),
        ("both", {"topk_prompt_logprobs": 2}, "topk_prompt_logprobs is not told"),
        ("both", {"prompt_alt_tokens_k": 2}, "prompt_alt_tokens_k is not told"),
        ("both", {"max_tokens": 0}, "max_tokens must be at least 1"),
    ],
)
async def test_what_cannot_be_streamed_is_named(
    engine: FakeEngine, tmp_path: Path, role: str, changes: dict[str, object], named: str
) -> None:
    with pytest.raises(InvalidInput, match=named):
        await chunks(runs_of(engine, tmp_path, role=role).chunks(request(**changes)))  # type: ignore[arg-type]
    assert engine.running == 0


async def test_a_decode_leg_answers_nothing_about_its_prompt(engine: FakeEngine, tmp_path: Path) -> None:
    asked = request(leg=pb.LEG_DECODE, prompt_logprobs=True).sample
    with pytest.raises(InvalidInput, match="prompt_logprobs is the prefill leg's to answer"):
        await runs_of(engine, tmp_path).result(asked)
