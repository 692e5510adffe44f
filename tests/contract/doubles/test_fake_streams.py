"""The sampler double's streams keep the sampler's contract, and break it where a test asks for that."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1 import sampler_pb2_grpc as pb_grpc
from tinkermesh.v1.types_pb2 import AdapterRef, SampleBody, SampleResult

from services.common.grpc_channel import open_channel
from tests.contract.doubles.test_fake_sampler import adapter
from tests.doubles.eventually import eventually
from tests.doubles.fake_sampler import FakeSampler
from tests.doubles.faults import write_rules
from tests.doubles.tokenizer import WordTokenizer, text_of

PROMPT = [5, 6, 7, 8]


@pytest.fixture
async def sampler(tmp_path: Path) -> AsyncIterator[FakeSampler]:
    made = FakeSampler(tmp_path)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def stub(sampler: FakeSampler) -> AsyncIterator[pb_grpc.SamplerStub]:
    async with open_channel(sampler.address) as channel:
        yield pb_grpc.SamplerStub(channel)


def request(request_id: str = "r", prompt: list[int] = PROMPT, **fields: object) -> pb.SampleStreamRequest:
    values = {"num_samples": 1, "max_tokens": 40, "seed": 1, "temperature": 1.0, **fields}
    stop = values.pop("stop", {})
    body = SampleBody(prompt_tokens=np.array(prompt, "<i4").tobytes(), stop=stop, **values)  # type: ignore[arg-type]
    return pb.SampleStreamRequest(sample=pb.SampleRequest(request_id=request_id, body=body), with_text=True)


async def told(stub: pb_grpc.SamplerStub, asked: pb.SampleStreamRequest) -> list[pb.SampleChunk]:
    return [chunk async for chunk in stub.SampleStream(asked, timeout=30)]


def ids(chunks: list[pb.SampleChunk], sequence: int = 0) -> list[int]:
    tokens = b"".join(chunk.tokens for chunk in chunks if chunk.sequence == sequence)
    return np.frombuffer(tokens, "<i4").tolist()


def text(chunks: list[pb.SampleChunk], sequence: int = 0) -> str:
    return "".join(chunk.text for chunk in chunks if chunk.sequence == sequence)


async def test_a_stream_tells_what_sample_answers(stub: pb_grpc.SamplerStub) -> None:
    asked = request(num_samples=3, topk_sample_logprobs=2)
    whole: SampleResult = (await stub.Sample(asked.sample)).result
    chunks = await told(stub, asked)
    for n, sequence in enumerate(whole.sequences):
        mine = [chunk for chunk in chunks if chunk.sequence == n]
        assert b"".join(chunk.tokens for chunk in mine) == sequence.tokens
        assert b"".join(chunk.logprobs for chunk in mine) == sequence.logprobs
        assert b"".join(chunk.topk.logprobs for chunk in mine) == sequence.topk.logprobs
        assert [chunk.finish for chunk in mine if chunk.finish] == ["stop" if sequence.stopped else "length"]
        assert text(chunks, n) == text_of(ids(chunks, n))


async def test_generated_characters_span_tokens_and_are_told_whole(stub: pb_grpc.SamplerStub) -> None:
    chunks = await told(stub, request(max_tokens=300, stop={"disabled": True}))
    assert any(len(chunk.text.encode()) > 2 and not chunk.text.isascii() for chunk in chunks)
    assert any(not chunk.text for chunk in chunks)
    assert "\ufffd" not in text(chunks)[:-1]


async def test_generation_goes_on_where_it_was_cut_off(stub: pb_grpc.SamplerStub) -> None:
    whole = await told(stub, request(max_tokens=40, stop={"disabled": True}))
    for cut in (1, 7, 23):
        rest = request(prompt=PROMPT + ids(whole)[:cut], max_tokens=40 - cut, stop={"disabled": True})
        rest.seam_tokens = cut
        assert ids(await told(stub, rest)) == ids(whole)[cut:]


async def test_a_decode_leg_tells_the_text_that_the_prefill_leg_held_back_PDR_14(stub: pb_grpc.SamplerStub) -> None:
    held_back = 0
    for number in range(2, 32):
        prompt = [*PROMPT, number]
        whole = await told(stub, request(prompt=prompt, max_tokens=8, stop={"disabled": True}))
        first = request(prompt=prompt, max_tokens=1, stop={"disabled": True})
        first.sample.leg = pb.LEG_PREFILL
        rest = request(prompt=prompt + ids(whole)[:1], max_tokens=7, stop={"disabled": True})
        rest.sample.leg, rest.seam_tokens = pb.LEG_DECODE, 1
        before, after = await told(stub, first), await told(stub, rest)
        assert ids(before) + ids(after) == ids(whole)
        assert text(before) + text(after) == text(whole)
        held_back += not text(before)
    assert held_back


async def test_stop_strings_end_it_and_are_not_in_the_text(stub: pb_grpc.SamplerStub) -> None:
    free = await told(stub, request(max_tokens=40, stop={"disabled": True}))
    stop = text(free)[9:14]
    chunks = await told(stub, request(max_tokens=40, stop={"strings": [stop]}))
    assert chunks[-1].finish == "stop"
    assert text(chunks) == text(free)[: text(free).index(stop)]
    assert stop in text_of(ids(chunks)) and ids(free)[: len(ids(chunks))] == ids(chunks)


async def test_a_repeat_gets_everything_from_the_start_and_abort_ends_both_IDEM_04(
    sampler: FakeSampler, stub: pb_grpc.SamplerStub
) -> None:
    sampler.faults.add("hold_token", "sample", tokens=5)
    first, second = stub.SampleStream(request()), stub.SampleStream(request())
    early = [await first.read() for _ in range(5)]
    assert [await second.read() for _ in range(5)] == early
    assert sampler.streams.attached == 1
    assert (await stub.Abort(pb.AbortRequest(request_id="r"))).was_running
    for call in (first, second):
        with pytest.raises(grpc.aio.AioRpcError, match="r was aborted"):
            await call.read()
    assert not sampler.running


async def test_an_orphan_is_aborted_after_its_time(sampler: FakeSampler, stub: pb_grpc.SamplerStub) -> None:
    sampler.streams._orphan_seconds = 0.05
    sampler.faults.add("hold_token", "sample.stream", tokens=2)
    call = stub.SampleStream(request())
    await call.read()
    call.cancel()
    await eventually(lambda: not sampler.running)


@pytest.mark.parametrize(("action", "text"), [("fail_token", "after 3 tokens"), ("cut_token", "")])
async def test_a_stream_breaks_off_where_it_is_told_to(
    sampler: FakeSampler, stub: pb_grpc.SamplerStub, action: str, text: str
) -> None:
    whole = await told(stub, request("whole"))
    sampler.faults.add(action, "sample.stream", tokens=3)
    got, call = [], stub.SampleStream(request())
    try:
        async for chunk in call:
            got.append(chunk)
    except grpc.aio.AioRpcError as error:
        assert text and text in str(error.details())
    else:
        assert not text
    assert got == whole[:3]


async def test_an_empty_stream_and_one_that_hangs(sampler: FakeSampler, stub: pb_grpc.SamplerStub) -> None:
    sampler.faults.add("cut_token", "sample.stream", tokens=0)
    assert await told(stub, request()) == []
    sampler.faults.add("hold_before", "sample.stream")
    with pytest.raises(grpc.aio.AioRpcError, match="DEADLINE_EXCEEDED"):
        await stub.SampleStream(request(), timeout=0.3).read()


async def test_a_process_dies_after_the_tokens_it_told(tmp_path: Path) -> None:
    control, port = tmp_path / "control", tmp_path / "port"
    write_rules(control, [{"kind": "sample", "action": "die_token", "tokens": 3, "seconds": 1.0}])
    arguments = ["--store-root", tmp_path, "--control", control, "--port-file", port]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.doubles.fake_sampler", *map(str, arguments)
    )
    await eventually(port.exists, seconds=60)
    async with open_channel(f"127.0.0.1:{port.read_text()}") as channel:
        call, got = pb_grpc.SamplerStub(channel).SampleStream(request(), timeout=30), []
        with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
            async for chunk in call:
                got.append(chunk)
    assert len(ids(got)) == 3
    assert await process.wait() == -signal.SIGKILL


async def test_a_leg_registers_what_its_cache_blocks_pair_by(tmp_path: Path) -> None:
    both, prefill = FakeSampler(tmp_path), FakeSampler(tmp_path, role="prefill")
    assert not both.registration().HasField("kv")
    assert (prefill.registration().role, prefill.registration().kv.block_size) == ("prefill", 32)


async def test_under_a_leg_an_adapter_is_refused_until_it_is_loaded_SAMP_02(tmp_path: Path) -> None:
    sampler = FakeSampler(tmp_path, role="decode")
    ref = adapter(tmp_path, "a", 7)
    asked = request()
    asked.sample.adapter.CopyFrom(ref)
    async with open_channel(await sampler.start()) as channel:
        stub = pb_grpc.SamplerStub(channel)
        with pytest.raises(grpc.aio.AioRpcError, match=r"INVALID_ARGUMENT[\s\S]*Admin\.LoadAdapter"):
            await told(stub, asked)
        assert not sampler.loaded
        await stub.LoadAdapter(pb.LoadAdapterRequest(adapter=ref))
        assert (await told(stub, asked))[-1].finish
    await sampler.stop()


async def test_a_load_stalls_and_is_refused_on_demand(sampler: FakeSampler, stub: pb_grpc.SamplerStub) -> None:
    ref: AdapterRef = adapter(sampler.store_root, "a", 7)
    rule = sampler.faults.add("hold_before", "load_adapter")
    load = asyncio.ensure_future(stub.LoadAdapter(pb.LoadAdapterRequest(adapter=ref)))
    await eventually(lambda: rule.seen == 1)
    assert not sampler.loaded
    sampler.faults.remove(rule)
    await load
    await stub.UnloadAdapter(pb.UnloadAdapterRequest(name=ref.name))
    sampler.faults.add("fail_user", "load_adapter")
    with pytest.raises(grpc.aio.AioRpcError, match="INVALID_ARGUMENT"):
        await stub.LoadAdapter(pb.LoadAdapterRequest(adapter=ref))


async def test_texts_and_conversations_become_ids_and_back(stub: pb_grpc.SamplerStub) -> None:
    said = "naïve 👋🏽 世界 e\u0301 the \x00 who"
    tokens = np.frombuffer((await stub.Tokenize(pb.TokenizeRequest(text=said))).tokens, "<i4").tolist()
    assert WordTokenizer().decode(tokens) == said
    chat = {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}
    reply = await stub.Tokenize(pb.TokenizeRequest(chat_json=json.dumps(chat)))
    assert text_of(np.frombuffer(reply.tokens, "<i4").tolist()) == "user: hi\nassistant:"
    with pytest.raises(grpc.aio.AioRpcError, match=r"messages\[0\]\.role"):
        await stub.Tokenize(pb.TokenizeRequest(chat_json='{"messages": [{"role": "dog", "content": ""}]}'))
