"""The sampler double keeps the sampler's contract: pinned versions, attached repeats, bounded places."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1 import sampler_pb2_grpc as pb_grpc
from tinkermesh.v1 import types_pb2 as types
from tinkermesh.v1.trainer_pb2 import ArtifactMeta

from services.common.datum_blocks import Datum
from services.common.grpc_channel import open_channel
from tests.doubles import arithmetic, published
from tests.doubles.fake_sampler import FakeSampler

PROMPT = np.array([5, 6, 7, 8], np.int32)


@pytest.fixture
async def sampler(tmp_path: Path) -> AsyncIterator[FakeSampler]:
    made = FakeSampler(tmp_path, max_adapters=2)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def stub(sampler: FakeSampler) -> AsyncIterator[pb_grpc.SamplerStub]:
    async with open_channel(sampler.address) as channel:
        yield pb_grpc.SamplerStub(channel)


def adapter(root: Path, name: str, weights: int) -> types.AdapterRef:
    meta = ArtifactMeta(model_id="m", kind="sampler_weights", name=name)
    path, _ = published.publish(root, f"runs/m/sampler_weights/{name}", meta, {"weights": f"{weights:x}", "rank": 4})
    return types.AdapterRef(name=f"m@{name}", path=path)


def request(request_id: str, ref: types.AdapterRef | None, **options: object) -> pb.SampleRequest:
    body = types.SampleBody(
        prompt_tokens=PROMPT.tobytes(), num_samples=3, max_tokens=6, seed=1, temperature=1.0, prompt_logprobs=True
    )
    return pb.SampleRequest(request_id=request_id, adapter=ref, body=body)


async def test_prompt_logprobs_are_the_trainer_doubles(sampler: FakeSampler, stub: pb_grpc.SamplerStub) -> None:
    ref = adapter(sampler.store_root, "a", 77)
    result = (await stub.Sample(request("r", ref))).result
    scores = np.frombuffer(result.prompt_logprobs, np.float32)
    trained = arithmetic.logprobs(77, Datum(PROMPT[:-1], PROMPT[1:, None], {}))[:, 0]
    assert np.isnan(scores[0])
    assert np.array_equal(scores[1:], trained)


async def test_versions_and_base_answer_differently_and_repeatably(
    sampler: FakeSampler, stub: pb_grpc.SamplerStub
) -> None:
    refs = [adapter(sampler.store_root, "a", 1), adapter(sampler.store_root, "b", 2), None]
    answers = [(await stub.Sample(request(f"r{n}", ref))).result for n, ref in enumerate(refs)]
    assert len({answer.SerializeToString() for answer in answers}) == 3
    again = (await stub.Sample(request("again", refs[0]))).result
    assert again == answers[0]
    assert len({s.tokens for s in again.sequences}) == 3


async def test_repeat_attaches_to_the_running_call(sampler: FakeSampler, stub: pb_grpc.SamplerStub) -> None:
    sampler.faults.add("delay_before", "sample", seconds=0.3)
    ref = adapter(sampler.store_root, "a", 1)
    answers = await asyncio.gather(*(stub.Sample(request("r", ref)) for _ in range(5)))
    assert all(answer == answers[0] for answer in answers)
    assert [e["kind"] for e in sampler.journal.entries] == ["load_adapter", "sample"]


async def test_adapters_in_use_are_never_evicted_SAMP_05(sampler: FakeSampler, stub: pb_grpc.SamplerStub) -> None:
    held = sampler.faults.add("hold_before", "sample", times=2)
    busy = [adapter(sampler.store_root, name, n) for n, name in enumerate("ab")]
    running = [asyncio.ensure_future(stub.Sample(request(f"r{n}", ref))) for n, ref in enumerate(busy)]
    async with asyncio.timeout(30):
        while len(sampler.loaded) < 2:
            await asyncio.sleep(0.01)
    third = adapter(sampler.store_root, "c", 9)
    with pytest.raises(grpc.aio.AioRpcError, match="RESOURCE_EXHAUSTED"):
        await stub.LoadAdapter(pb.LoadAdapterRequest(adapter=third))
    sampler.faults.remove(held)
    await asyncio.gather(*running)
    await stub.LoadAdapter(pb.LoadAdapterRequest(adapter=third))
    assert len(sampler.loaded) == 2 and "m@c" in sampler.loaded


async def test_missing_version_is_not_found(stub: pb_grpc.SamplerStub) -> None:
    ref = types.AdapterRef(name="m@x", path="runs/m/sampler_weights/x")
    with pytest.raises(grpc.aio.AioRpcError, match="NOT_FOUND"):
        await stub.LoadAdapter(pb.LoadAdapterRequest(adapter=ref))
