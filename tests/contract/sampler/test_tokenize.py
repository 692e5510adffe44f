"""Ids and pieces by the tokenizer of a running sampler, the real one and the double."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import pytest
from tinkermesh.v1 import sampler_pb2 as pb
from transformers import AutoTokenizer

from tests.contract.sampler.client import SamplerClient, SamplerProcess, body
from tests.doubles.fake_sampler import FakeSampler

SAID = "the captain said: naïve 世界 e\u0301 👋🏽\n"


@dataclass(slots=True)
class Tokens:
    client: SamplerClient

    async def of(self, **asked: object) -> list[int]:
        reply = await self.client.stub.Tokenize(pb.TokenizeRequest(**asked), timeout=20)  # type: ignore[arg-type]
        return np.frombuffer(reply.tokens, "<i4").tolist()

    async def pieces(self, tokens: list[int]) -> list[bytes]:
        asked = pb.PiecesRequest(tokens=np.array(tokens, "<i4").tobytes())
        return list((await self.client.stub.Pieces(asked, timeout=20)).pieces)


@pytest.fixture
async def on_double(tmp_path: Path) -> AsyncIterator[Tokens]:
    double = FakeSampler(tmp_path)
    async with SamplerClient(await double.start()) as client:
        yield Tokens(client)
    await double.stop()


@pytest.fixture
async def on_engine(client: SamplerClient) -> Tokens:
    return Tokens(client)


@pytest.fixture(params=["double", pytest.param("engine", marks=pytest.mark.engine)])
def tokens(request: pytest.FixtureRequest) -> Tokens:
    return request.getfixturevalue(f"on_{request.param}")


async def test_pieces_of_a_texts_ids_are_its_bytes(tokens: Tokens) -> None:
    ids = await tokens.of(text=SAID)
    pieces = await tokens.pieces(ids)
    assert b"".join(pieces).decode() == SAID
    assert len(pieces) == len(ids) and any(piece[:1] >= b"\x80" and len(piece) < 3 for piece in pieces)
    special, unknown = await tokens.pieces([0, 10**6])
    assert special.startswith(b"<|end") and unknown == b""


async def test_ids_of_a_text_are_sampled_from_as_they_are(tokens: Tokens) -> None:
    ids = await tokens.of(text=SAID)
    assert (await tokens.client.sample(body(ids, max_tokens=2)))[0].tokens


@pytest.mark.parametrize("chat", ["{", '{"messages": []}', '{"messages": [{"role": "dog", "content": "x"}]}'])
async def test_a_bad_conversation_is_the_callers_error(tokens: Tokens, chat: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await tokens.of(chat_json=chat)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.engine
async def test_ids_are_the_models_tokenizers(on_engine: Tokens, sampler: SamplerProcess) -> None:
    assert await on_engine.of(text=SAID) == AutoTokenizer.from_pretrained(sampler.model).encode(SAID)


@pytest.mark.engine
async def test_a_model_without_a_template_takes_no_conversation(on_engine: Tokens) -> None:
    chat = json.dumps({"messages": [{"role": "user", "content": "hi"}]})
    with pytest.raises(grpc.aio.AioRpcError, match="no chat template: send a prompt to completions"):
        await on_engine.of(chat_json=chat)
