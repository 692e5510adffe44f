"""What the Completions service makes of a request, and what it answers."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from tinkermesh.v1 import completions_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import (
    ContextExceeded,
    DecodeInterrupted,
    Forbidden,
    Interrupted,
    InvalidInput,
    MissingResource,
    ServerError,
    TinkermeshError,
    Unavailable,
)
from tests.contract.scheduler.front.mesh import ALICE, BASE, BOB, refused
from tests.contract.scheduler.generating.conftest import Stage, request
from tests.contract.scheduler.generating.fakes import MODEL, SNAPSHOT, SNAPSHOT_MADE, Played, chunk
from tests.doubles.eventually import eventually
from tests.doubles.fake_sampler import sampler_facts

CONTEXT, VOCABULARY = sampler_facts().max_context, sampler_facts().vocab_size
REST = CONTEXT - 5


async def test_first_what_is_begun_then_what_is_said(stage: Stage) -> None:
    events = await stage.events(prompt="hello")
    assert [event.WhichOneof("event") for event in events] == ["started", "chunk", "chunk"]
    assert np.frombuffer(events[0].started.prompts[0].tokens, "<i4").tolist() == list(map(ord, "hello"))
    assert [(event.chunk.text, event.chunk.finish) for event in events[1:]] == [("a", ""), ("b", "stop")]


async def test_a_sampler_is_asked_for_text_with_the_tenant_as_salt(stage: Stage) -> None:
    await stage.events(model=SNAPSHOT, affinity="talk", n=2)
    asked, wanted = stage.generations.requests[0], stage.generations.wanted[0]
    assert asked.with_text and asked.sample.cache_salt == wanted.tenant_id == ALICE
    assert asked.sample.adapter.name == f"{MODEL}@snap_1" and asked.sample.adapter == wanted.adapter
    assert (wanted.sequences, wanted.affinity) == (2, f"{ALICE} talk")


async def test_the_sampling_fields_reach_a_sampler_as_they_came(stage: Stage) -> None:
    body: dict[str, Any] = {"seed": 7, "topk_sample_logprobs": 2, "stop": types.StopCondition(strings=["x"])}
    await stage.events(body=body, n=3, max_tokens=4)
    sent = types.SampleBody()
    sent.CopyFrom(stage.generations.requests[0].sample.body)
    sent.ClearField("prompt_tokens")
    assert sent == types.SampleBody(num_samples=3, max_tokens=4, temperature=1.0, top_p=1.0, top_k=-1, **body)


async def test_a_conversation_is_made_tokens_by_the_samplers_template(stage: Stage) -> None:
    await stage.events(prompt=pb.Prompt(chat_json='{"messages": []}'))
    assert stage.generations.tokenized[0].chat_json == '{"messages": []}'
    async with refused(InvalidInput, "messages: the template"):
        await stage.events(prompt=pb.Prompt(chat_json="refused"))


@pytest.mark.parametrize(
    ("prompt", "name"), [(pb.Prompt(text="long"), "prompt: "), (pb.Prompt(chat_json="long"), "messages: ")]
)
async def test_what_a_sampler_refuses_is_told_by_the_clients_names(stage: Stage, prompt: pb.Prompt, name: str) -> None:
    async with refused(InvalidInput, f"{name}it has 9 bytes"):
        await stage.events(prompt=prompt)


async def test_token_ids_are_not_tokenized_again(stage: Stage) -> None:
    await stage.events(prompt=pb.Prompt(tokens=np.array([5, 6], "<i4").tobytes()))
    assert stage.generations.tokenized == []
    assert np.frombuffer(stage.generations.requests[0].sample.body.prompt_tokens, "<i4").tolist() == [5, 6]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({}, REST), ({"default_tokens": 16}, 16), ({"default_tokens": 9_999_999}, REST), ({"max_tokens": 3}, 3)],
)  # fmt: skip
async def test_how_much_is_generated_PDR_06(stage: Stage, fields: dict[str, int], expected: int) -> None:
    """Never an engine's own default: what is absent is the rest of the context."""
    await stage.events(**fields)
    assert stage.generations.requests[0].sample.body.max_tokens == expected


@pytest.mark.parametrize(
    ("tokens", "most", "kind", "words"),
    [
        (CONTEXT, 0, ContextExceeded, "leaves no room"), (CONTEXT - 1, 2, ContextExceeded, "max_tokens: 2 after"),
        (0, 0, InvalidInput, "no tokens"), (-1, 0, InvalidInput, "outside"),
    ],
)  # fmt: skip
async def test_prompts_that_cannot_be_are_refused_before_anybody_is_asked_PDR_09(
    stage: Stage, tokens: int, most: int, kind: type[TinkermeshError], words: str
) -> None:
    ids = np.full(tokens, 1, "<i4") if tokens >= 0 else np.array([VOCABULARY], "<i4")
    prompt = pb.Prompt(tokens=ids.tobytes()) if tokens else pb.Prompt(text="")
    async with refused(kind, words):
        await stage.events(prompt=prompt, **({"max_tokens": most} if most else {}))
    assert stage.generations.wanted == []


@pytest.mark.parametrize(
    "model", ["gpt-4", "", f"gpt-4;{SNAPSHOT}", "tinker://nonsense", SNAPSHOT.replace("sampler_", ""), f"{BASE};x"]
)
async def test_a_model_that_is_none_is_missing(stage: Stage, model: str) -> None:
    async with refused(MissingResource, "model: "):
        await stage.events(model=model)
    assert stage.generations.wanted == []


@pytest.mark.parametrize("model", [SNAPSHOT, f"{BASE};{SNAPSHOT}"])
async def test_another_tenants_snapshot_is_refused_and_nobody_asked_SEC_05(stage: Stage, model: str) -> None:
    assert await stage.said(model=model) == "ab"
    asked = len(stage.generations.wanted), len(stage.generations.tokenized)
    async with refused(Forbidden):
        await stage.events(model=model, tenant_id=BOB)
    assert (len(stage.generations.wanted), len(stage.generations.tokenized)) == asked


@pytest.mark.parametrize(("prompts", "n", "field"), [(2, 1, "prompt: "), (1, 2, "n: ")])
async def test_prefill_and_decode_samplers_take_one_sequence_a_request_PDR_07(
    stage: Stage, prompts: int, n: int, field: str
) -> None:
    """Up front: no leg is called, nothing is tokenized."""
    stage.directory.roles = ["prefill", "decode"]
    call = stage.stub.Generate(_several(prompts, n))
    async with refused(InvalidInput, field):
        [event async for event in call]
    assert stage.generations.wanted == [] and stage.generations.tokenized == []
    assert await stage.said() == "ab"
    stage.directory.roles = ["both", "both"]
    assert len([event async for event in stage.stub.Generate(_several(prompts, n))]) > 1


def _several(prompts: int, n: int) -> pb.GenerateRequest:
    return request(*["x"] * prompts, n=n)


async def test_several_prompts_are_told_apart_and_all_are_answered(stage: Stage) -> None:
    stage.generations.plays = [[chunk("a", finish="stop")], [chunk("b", finish="length")]]
    events = [event async for event in stage.stub.Generate(_several(2, 1))]
    assert len(events[0].started.prompts) == 2
    said = {event.chunk.prompt: (event.chunk.text, event.chunk.finish) for event in events[1:]}
    assert sorted(said) == [0, 1] and sorted(said.values()) == [("a", "stop"), ("b", "length")]


async def test_one_prompt_that_fails_ends_the_others_PDR_12(stage: Stage) -> None:
    stage.generations.plays = [[chunk("a"), asyncio.Event()], [Unavailable("sampler one was lost")]]
    async with refused(Interrupted):
        [event async for event in stage.stub.Generate(_several(2, 1))]
    await eventually(lambda: stage.generations.placed == stage.generations.streaming == 0)


@pytest.mark.parametrize(("samplers", "kind"), [(("one",), Interrupted), (("prefill", "decode"), DecodeInterrupted)])
async def test_what_breaks_off_after_its_first_part_says_so_PDR_10(
    stage: Stage, samplers: tuple[str, ...], kind: type[TinkermeshError]
) -> None:
    stage.generations.samplers = samplers
    stage.generations.play = [chunk("a"), Unavailable("sampler decode: stage 'next token': lost")]
    async with refused(kind, "broke off", "stage 'next token'"):
        await stage.events()


@pytest.mark.parametrize("error", [InvalidInput("n: no"), Unavailable("lost"), ServerError("empty")])
async def test_what_fails_before_keeps_its_own_class_PDR_09(stage: Stage, error: TinkermeshError) -> None:
    play: list[Played] = [error]
    stage.generations.play = play
    async with refused(type(error), error.message):
        await stage.events()
    assert len(stage.generations.requests) == 1, "nothing is repeated here"


async def test_pieces_of_tokens_are_asked_for_once_PDR_15(stage: Stage) -> None:
    table = types.TopkTable(
        token_ids=np.array([97, 99], "<i4").tobytes(), logprobs=np.zeros(2, "<f4").tobytes(), k=2, length=1
    )
    stage.generations.play = [chunk("a", topk=table), chunk("b", finish="stop")]
    for _ in range(2):
        events = await stage.events(with_pieces=True, with_prompt_pieces=True, prompt="hi")
        assert list(events[0].started.prompts[0].pieces) == [b"h", b"i"]
        assert list(events[1].chunk.pieces) == [b"a"] and list(events[1].chunk.topk_pieces) == [b"a", b"c"]
    asked = [one for ids in stage.generations.pieces_asked for one in ids]
    assert sorted(asked) == sorted({*map(ord, "hiabc")})
    assert not (await stage.events())[1].chunk.pieces, "only for those who asked"


async def test_a_replica_on_its_way_out_takes_nothing_new(stage: Stage) -> None:
    stage.front.stop_admission()
    async with refused(Unavailable, "shutting down"):
        await stage.events()


async def test_models_are_base_models_and_one_may_be_a_snapshot(stage: Stage) -> None:
    listed = await stage.stub.Models(pb.CompletionModelsRequest(tenant_id=ALICE))
    assert [(one.id, one.max_context) for one in listed.models] == [(BASE, CONTEXT)]
    for model in (SNAPSHOT, f"{BASE};{SNAPSHOT}"):
        found = await stage.stub.Models(pb.CompletionModelsRequest(tenant_id=ALICE, model=model))
        assert [(one.id, one.base_model, one.created_unix_ms) for one in found.models] == [(model, BASE, SNAPSHOT_MADE)]
    stage.directory.roles = []
    assert not (await stage.stub.Models(pb.CompletionModelsRequest(tenant_id=ALICE))).models
    async with refused(MissingResource):
        await stage.stub.Models(pb.CompletionModelsRequest(tenant_id=ALICE, model="gpt-4"))
    async with refused(Forbidden):
        await stage.stub.Models(pb.CompletionModelsRequest(tenant_id=BOB, model=SNAPSHOT))
