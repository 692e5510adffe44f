"""The Completions service over prefill and decode samplers: what one engine says, told over the seam."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tinkermesh.v1 import completions_pb2 as pb
from tinkermesh.v1 import completions_pb2_grpc
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import DecodeInterrupted, InvalidInput
from tests.contract.scheduler.front.conftest import StartSampler
from tests.contract.scheduler.front.mesh import ALICE, BASE, Replica, refused
from tests.doubles import generation
from tests.doubles.eventually import eventually
from tests.doubles.fake_sampler import BASE_WEIGHTS, FakeSampler
from tests.doubles.tokenizer import text_of

LENGTH = 12
PROMPTS = ["hello", "the people of ", "世界", "a"]


class Pair:
    """A prefill and a decode sampler, and the service in front of them."""

    def __init__(self, replica: Replica, prefill: FakeSampler, decode: FakeSampler) -> None:
        self.stub: Any = completions_pb2_grpc.CompletionsStub(replica.channel)
        self.prefill, self.decode = prefill, decode

    def call(self, *prompts: str, n: int = 1, tokens: int = LENGTH, stop: str = "", pieces: bool = False) -> Any:
        request = pb.GenerateRequest(tenant_id=ALICE, model=BASE, max_tokens=tokens, with_pieces=pieces)
        request.prompts.extend(pb.Prompt(text=prompt) for prompt in prompts)
        request.body.CopyFrom(types.SampleBody(num_samples=n, top_p=1.0, top_k=-1))
        request.body.stop.strings.extend([stop] if stop else [])
        return self.stub.Generate(request)

    async def chunks(self, *prompts: str, **fields: Any) -> list[pb.GeneratedChunk]:
        return [event.chunk async for event in self.call(*prompts, **fields) if event.HasField("chunk")]

    def legs(self) -> tuple[int, int]:
        """Samples that ran at each."""
        return tuple(sum(e["kind"] == "sample" for e in one.journal.entries) for one in (self.prefill, self.decode))  # type: ignore[return-value]


@pytest.fixture
async def pair(replica: Replica, start_sampler: StartSampler) -> Pair:
    prefill = await start_sampler(sampler_id="first", role="prefill")
    return Pair(replica, prefill, await start_sampler(sampler_id="second", role="decode"))


def whole(prompt: str, tokens: int = LENGTH) -> types.SampledSequence:
    """What one engine says, greedily."""
    ids = generation.TOKENIZER.encode(prompt, add_special_tokens=True)
    body = types.SampleBody(
        prompt_tokens=np.array(ids, "<i4").tobytes(), num_samples=1, max_tokens=tokens, top_p=1.0, top_k=-1
    )
    return generation.sequence(BASE_WEIGHTS, body, 0, 0)


def ids(data: bytes) -> list[int]:
    found: list[int] = np.frombuffer(data, "<i4").tolist()
    return found


@pytest.mark.parametrize("prompt", PROMPTS)
async def test_tokens_text_and_logprobs_are_those_of_one_engine_PDR_02_PDR_14_PDR_15(pair: Pair, prompt: str) -> None:
    expected = whole(prompt)
    chunks = await pair.chunks(prompt, pieces=True)
    assert b"".join(chunk.tokens for chunk in chunks) == expected.tokens
    assert b"".join(chunk.logprobs for chunk in chunks) == expected.logprobs
    assert "".join(chunk.text for chunk in chunks) == text_of(ids(expected.tokens))
    pieces = [piece for chunk in chunks for piece in chunk.pieces]
    assert pieces == [generation.TOKENIZER.piece(token) for token in ids(expected.tokens)]
    assert [bool(chunk.finish) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert pair.legs() == (1, 1)


async def test_one_token_needs_no_decode_sampler_PDR_04(pair: Pair) -> None:
    (chunk,) = await pair.chunks("hello", tokens=1)
    assert chunk.tokens == whole("hello", 1).tokens and chunk.finish
    assert pair.legs() == (1, 0)


async def test_a_stop_text_over_the_seam_ends_it_before_itself_PDR_14(pair: Pair) -> None:
    """It begins in the prefill sampler's token and ends in the decode sampler's."""
    prompt, first, second = next(
        (prompt, *pieces)
        for prompt in ("a", "b", "of ", "the", "c", "d", "hello", "who")
        for pieces in [[generation.TOKENIZER.piece(token) for token in ids(whole(prompt).tokens)[:2]]]
        if all(piece.isascii() and piece.decode().isprintable() for piece in pieces)
    )
    stop = first.decode()[-1] + second.decode()[0]
    text = text_of(ids(whole(prompt).tokens))
    chunks = await pair.chunks(prompt, stop=stop)
    assert "".join(chunk.text for chunk in chunks) == text[: text.index(stop)] == first.decode()[:-1]
    assert chunks[-1].finish == "stop" and pair.legs() == (1, 1)


@pytest.mark.parametrize(("prompts", "n", "field"), [(["a"], 2, "n: "), (["a", "b"], 1, "prompt: ")])
async def test_what_needs_several_flows_is_refused_up_front_PDR_07(
    pair: Pair, prompts: list[str], n: int, field: str
) -> None:
    async with refused(InvalidInput, field, "prefill and decode"):
        await pair.chunks(*prompts, n=n)
    assert pair.legs() == (0, 0) and not pair.prefill.running


async def test_a_decode_sampler_that_breaks_off_is_told_as_that_PDR_10(pair: Pair) -> None:
    pair.decode.faults.add("fail_token", "sample.stream", times=0, tokens=2)
    said = []
    async with refused(DecodeInterrupted):
        async for event in pair.call("hello"):
            said.append(event)
    assert len(said) > 1, "something had been told"


async def test_a_client_that_goes_ends_both_legs_PDR_12(pair: Pair) -> None:
    pair.decode.faults.add("hold_token", "sample.stream", times=0, tokens=1)
    call = pair.call("hello")
    for _ in range(2):
        await call.read()
    await eventually(lambda: pair.decode.running)
    call.cancel()
    await eventually(lambda: not pair.prefill.running and not pair.decode.running)
