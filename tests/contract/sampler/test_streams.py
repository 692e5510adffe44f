"""Streams of the real engine, and of the double by the same scenarios."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1.types_pb2 import AdapterRef, StopCondition
from transformers import AutoTokenizer

from tests.contract.sampler.client import SamplerClient, SamplerProcess, body
from tests.contract.sampler.stream_scenario import PROMPT, Scenario
from tests.doubles.fake_sampler import FakeSampler
from tests.doubles.tokenizer import text_of


@pytest.fixture
async def on_double(tmp_path: Path) -> AsyncIterator[Scenario]:
    double = FakeSampler(tmp_path)
    async with SamplerClient(await double.start()) as client:
        yield Scenario(client, text_of)
    await double.stop()


@pytest.fixture
async def on_engine(client: SamplerClient, sampler: SamplerProcess) -> Scenario:
    tokenizer = AutoTokenizer.from_pretrained(sampler.model)
    return Scenario(client, lambda ids: tokenizer.decode(ids, skip_special_tokens=True))


@pytest.fixture(params=["double", pytest.param("engine", marks=pytest.mark.engine)])
def scenario(request: pytest.FixtureRequest) -> Scenario:
    return request.getfixturevalue(f"on_{request.param}")


async def test_a_greedy_stream_is_the_sample_bit_for_bit_SAMP_09(scenario: Scenario) -> None:
    (told,) = await scenario.stream_is_sample(body(PROMPT, max_tokens=60, temperature=0.0))
    assert told.chunks > 30  # told while it was generated


async def test_seeded_sequences_are_told_in_their_own_order_SAMP_07(scenario: Scenario) -> None:
    asked = body(PROMPT, max_tokens=20, num_samples=4, seed=100, topk_sample_logprobs=3)
    told = await scenario.stream_is_sample(asked)
    assert len({tuple(one.tokens) for one in told}) == 4


async def test_an_ended_sequence_says_stop_and_its_special_token_is_no_text(scenario: Scenario) -> None:
    """EOS is rare, so many samples at a high temperature find it."""
    asked = body(PROMPT, max_tokens=40, num_samples=64, seed=5, temperature=3.0, stop=StopCondition())
    told = await scenario.stream_is_sample(asked)
    ended = [one for one in told if one.finish == "stop"]
    assert ended and all(one.tokens[-1] == 0 and "<|end" not in one.text for one in ended)


async def test_stop_strings_over_token_boundaries_are_kept_out_of_the_text(scenario: Scenario) -> None:
    await scenario.stop_strings_are_kept_out(PROMPT, 40)


async def test_two_legs_tell_together_what_one_sampler_tells_PDR_14(scenario: Scenario) -> None:
    for first in range(2, 40):
        await scenario.legs_are_one([first, *PROMPT], 12)


async def test_a_stop_string_across_the_seam_ends_the_decode_leg_PDR_14(scenario: Scenario) -> None:
    """It begins in the prefill leg's token, which the engine of the decode leg takes for prompt."""
    found = 0
    for first in range(2, 60):
        prompt = [first, *PROMPT]
        (free,) = await scenario.told(body(prompt, max_tokens=4, temperature=0.0))
        seam = len(scenario.text_of(free.tokens[:1]))
        stop = free.text[max(0, seam - 1) : seam + 1]
        if seam and len(stop) == 2 and "\ufffd" not in stop and free.text.index(stop) == seam - 1:
            found += 1
            await scenario.legs_are_one(prompt, 8, StopCondition(strings=[stop]))
    assert found >= 5


async def test_a_repeat_gets_everything_from_the_start_IDEM_04(scenario: Scenario) -> None:
    await scenario.repeat_attaches(body(PROMPT, max_tokens=60))


@pytest.mark.engine
async def test_an_abort_mid_stream_frees_the_engine_SAMP_08(on_engine: Scenario) -> None:
    await on_engine.abort_ends_it(body(PROMPT, max_tokens=2000, num_samples=4))


@pytest.mark.engine
async def test_with_an_adapter_a_stream_is_the_sample_too(on_engine: Scenario, adapter_a: AdapterRef) -> None:
    (base,) = await on_engine.told(body(PROMPT, max_tokens=24, temperature=0.0))
    (told,) = await on_engine.stream_is_sample(body(PROMPT, max_tokens=24, temperature=0.0), adapter_a)
    assert told.tokens != base.tokens


@pytest.mark.engine
async def test_cancelled_streams_leave_the_engine_empty_PDR_12(on_engine: Scenario) -> None:
    """Callers that go away at any token; the scheduler then sends an Abort, without which a stream is an orphan."""
    random = np.random.default_rng(3)
    for turn in range(40):
        name, stop_at = f"gone.{turn}", int(random.integers(0, 8))
        call = on_engine.call(body([int(turn) + 2, *PROMPT], max_tokens=1500, num_samples=1 + turn % 3), name)
        for _ in range(stop_at):
            await call.read()
        call.cancel()
        await on_engine.client.stub.Abort(pb.AbortRequest(request_id=name), timeout=10)
    await on_engine.idle()
    (again,) = await on_engine.told(body(PROMPT, max_tokens=5))
    assert len(again.tokens) == 5


@pytest.mark.engine
async def test_prefix_hits_are_told_with_the_first_chunk(on_engine: Scenario) -> None:
    prompt = np.random.default_rng(17).integers(2, 512, 100).tolist()
    for cached in (0, 96):
        chunks = await on_engine.chunks(body(prompt, max_tokens=3))
        assert [chunk.cached_tokens for chunk in chunks] == [cached, 0, 0]


@pytest.mark.engine
async def test_a_context_that_is_full_ends_the_stream_as_length_SAMP_08(on_engine: Scenario) -> None:
    prompt = np.random.default_rng(0).integers(2, 512, 2040).tolist()
    (told,) = await on_engine.told(body(prompt, max_tokens=100))
    assert (len(told.tokens), told.finish) == (8, "length")
