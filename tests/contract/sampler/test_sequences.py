"""Seeds, n, stops and refusals, on the real engine."""

from __future__ import annotations

import asyncio
import itertools

import grpc
import numpy as np
import pytest
from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1.types_pb2 import AdapterRef, StopCondition
from transformers import AutoTokenizer

from tests.contract.sampler.client import SamplerClient, SamplerProcess, body, status

pytestmark = pytest.mark.engine

PROMPT = [17, 300, 45, 6, 211, 480, 92, 130]
EOS = 0


async def test_n_samples_use_seeds_s_and_following_SAMP_07(client: SamplerClient, adapter_a: AdapterRef) -> None:
    together = await client.sample(body(PROMPT, max_tokens=12, num_samples=4, seed=100), adapter_a)
    single = [(await client.sample(body(PROMPT, max_tokens=12, seed=100 + i), adapter_a))[0] for i in range(4)]
    assert [s.tokens for s in together] == [s.tokens for s in single]
    assert len({tuple(s.tokens) for s in together}) == 4


async def test_unseeded_samples_differ_from_each_other_and_between_calls_SAMP_07(client: SamplerClient) -> None:
    first = await client.sample(body(PROMPT, max_tokens=12, num_samples=3))
    second = await client.sample(body(PROMPT, max_tokens=12, num_samples=3))
    assert len({tuple(s.tokens) for s in first + second}) == 6


@pytest.mark.parametrize("seed", [0, -1, -(2**63), 2**63 - 1])
async def test_every_int64_is_a_reproducible_seed_SAMP_07(client: SamplerClient, seed: int) -> None:
    request = body(PROMPT, max_tokens=8, num_samples=2, seed=seed)
    first, again = await client.sample(request), await client.sample(request)
    assert [s.tokens for s in first] == [s.tokens for s in again]


async def test_a_seed_means_the_same_however_the_prompt_is_cut_into_chunks_SAMP_07(client: SamplerClient) -> None:
    """Whole chunks first, then mostly from the prefix cache, then among other long prompts."""
    prompts = [np.random.default_rng(n).integers(2, 512, 1200).tolist() for n in range(4)]
    request = body(prompts[0], max_tokens=12, num_samples=2, seed=31)
    chunked = await client.sample(request)
    cached = await client.sample(request)
    others = [body(prompt, max_tokens=12, seed=7) for prompt in prompts[1:]]
    crowd = await asyncio.gather(*(client.sample(other) for other in others), client.sample(request))
    scored = await client.sample(body(prompts[0], max_tokens=12, num_samples=2, seed=31, prompt_logprobs=True))
    tokens = [sequence.tokens for sequence in chunked]
    assert tokens == [sequence.tokens for sequence in cached]
    assert tokens == [sequence.tokens for sequence in crowd[-1]]
    assert tokens == [sequence.tokens for sequence in scored]


async def test_every_token_has_its_logprob_SAMP_09(client: SamplerClient) -> None:
    for sequence in await client.sample(body(PROMPT, max_tokens=30, num_samples=8, stop=StopCondition())):
        assert len(sequence.tokens) == len(sequence.logprobs) > 0
        assert np.isfinite(sequence.logprobs).all() and (sequence.logprobs <= 0).all()


async def test_a_stop_id_ends_the_sequence_and_stays_in_it_once(client: SamplerClient) -> None:
    free = await client.greedy(PROMPT, 20)
    stop = free.tokens[7]
    first = free.tokens.index(stop)
    condition = StopCondition(token_ids=[stop])
    (made,) = await client.sample(body(PROMPT, max_tokens=20, temperature=0.0, stop=condition))
    assert made.stopped
    assert made.tokens == free.tokens[: first + 1]
    assert len(made.logprobs) == first + 1


async def test_a_stop_string_ends_the_sequence_with_the_token_that_completes_it(
    client: SamplerClient, sampler: SamplerProcess
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(sampler.model)
    free = await client.greedy(PROMPT, 40)
    # Spans tokens and starts inside one.
    spans = (tokenizer.decode(free.tokens[end - 3 : end])[1:] for end in range(3, 41))
    text = next(span for span in spans if len(span) > 2 and "\ufffd" not in span)
    expected = next(n for n in range(1, 41) if text in tokenizer.decode(free.tokens[:n]))
    condition = StopCondition(strings=[text, "never said"])
    (made,) = await client.sample(body(PROMPT, max_tokens=40, temperature=0.0, stop=condition))
    assert made.stopped
    assert made.tokens == free.tokens[:expected]
    assert len(made.logprobs) == expected
    assert tokenizer.decode(made.tokens).count(text) == 1


async def test_a_stop_string_that_ends_inside_a_token_keeps_that_token_whole(
    client: SamplerClient, sampler: SamplerProcess
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(sampler.model)
    (free,) = await client.sample(body(PROMPT, max_tokens=200, seed=2))
    pairs = ((tokenizer.decode([a, b]), len(tokenizer.decode([b]))) for a, b in itertools.pairwise(free.tokens))
    text = next(pair[-size - 1 : -1] for pair, size in pairs if size > 1 and "\ufffd" not in pair)
    expected = next(n for n in range(1, 201) if text in tokenizer.decode(free.tokens[:n]))
    condition = StopCondition(strings=[text])
    (made,) = await client.sample(body(PROMPT, max_tokens=200, seed=2, stop=condition))
    assert made.stopped and made.tokens == free.tokens[:expected]
    assert tokenizer.decode(made.tokens).count(text) == 1


async def test_without_a_stop_the_length_ends_it(client: SamplerClient) -> None:
    (made,) = await client.sample(body(PROMPT, max_tokens=9))
    assert not made.stopped and len(made.tokens) == 9


async def test_eos_stops_by_default_and_not_when_stops_are_disabled(client: SamplerClient) -> None:
    """The tiny model's EOS is rare, so many short samples at a high temperature find it."""
    request = body(PROMPT, max_tokens=40, num_samples=64, seed=5, temperature=3.0)
    ignoring = await client.sample(request)
    hit = [index for index, sequence in enumerate(ignoring) if EOS in sequence.tokens]
    assert hit and not any(sequence.stopped for sequence in ignoring)
    request.stop.Clear()
    stopping = await client.sample(request)
    for index in hit:
        end = ignoring[index].tokens.index(EOS) + 1
        assert stopping[index].stopped
        assert stopping[index].tokens == ignoring[index].tokens[:end]


async def test_eos_still_stops_beside_stop_ids(client: SamplerClient) -> None:
    request = body(PROMPT, max_tokens=40, num_samples=64, seed=5, temperature=3.0)
    request.stop.CopyFrom(StopCondition(token_ids=[511]))
    made = await client.sample(request)
    assert any(sequence.stopped and sequence.tokens[-1] == EOS for sequence in made)


async def test_output_ends_at_the_context_as_length_SAMP_08(client: SamplerClient) -> None:
    prompt = np.random.default_rng(0).integers(2, 512, 2040).tolist()
    (made,) = await client.sample(body(prompt, max_tokens=100))
    assert len(made.tokens) == 8 and not made.stopped


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"num_samples": 0}, "num_samples"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"topk_prompt_logprobs": 100_000}, "topk_prompt_logprobs"),
        ({"prompt_tokens": b""}, "prompt_tokens"),
        ({"prompt_tokens": np.asarray([1, 512], "<i4").tobytes()}, "position 1"),
        ({"prompt_tokens": np.zeros(2049, "<i4").tobytes()}, "2049"),
    ],
)
async def test_a_bad_request_is_a_user_error_naming_the_field_VAL_17_SAMP_10(
    client: SamplerClient, change: dict[str, object], text: str
) -> None:
    request = body(PROMPT)
    for name, value in change.items():
        setattr(request, name, value)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.sample(request)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert text in status(caught.value)
    assert await client.sample(body(PROMPT))  # nothing is broken


async def test_a_repeated_request_id_attaches_to_the_running_call_IDEM_04(client: SamplerClient) -> None:
    request = body(PROMPT, max_tokens=60)
    first = asyncio.create_task(client.sample(request, request_id="same.1"))
    await client.until_running(1)
    second = await client.sample(request, request_id="same.1")
    assert second[0].tokens == (await first)[0].tokens  # unseeded: equal only when it ran once


async def test_abort_frees_the_engine_and_fails_the_call_SAMP_08(client: SamplerClient) -> None:
    long = asyncio.create_task(client.sample(body(PROMPT, max_tokens=2000, num_samples=4), request_id="long.1"))
    await client.until_running(4)
    assert (await client.stub.Abort(pb.AbortRequest(request_id="long.1"), timeout=5)).was_running
    with pytest.raises(grpc.aio.AioRpcError, match=r"long\.1 was aborted"):
        await long
    async with asyncio.timeout(5):
        while (await client.stub.Describe(pb.DescribeSamplerRequest())).running:
            pass
    assert not (await client.stub.Abort(pb.AbortRequest(request_id="long.1"), timeout=5)).was_running


async def test_describe_tells_the_facts_and_limits(client: SamplerClient, sampler: SamplerProcess) -> None:
    description = await client.stub.Describe(pb.DescribeSamplerRequest(), timeout=5)
    assert description.facts.vocab_size == 512
    assert description.facts.max_context == 2048
    assert description.facts.pool == "tiny-qwen3"
    assert len(description.facts.model_fingerprint) == 32
    assert description.role == "both"
    assert description.engine.startswith("vllm ")
    assert description.sampler_id.endswith(sampler.address)
