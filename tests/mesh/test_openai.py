"""The unmodified openai client against a mesh of real processes with a doubled engine, which says what it must."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from redis import Redis
from tinkermesh.v1 import types_pb2 as types

from services.sampler.conversation import parse_conversation
from tests.doubles import generation
from tests.doubles.eventually import until
from tests.doubles.fake_sampler import BASE_WEIGHTS
from tests.doubles.fake_trainer import BASE_MODEL
from tests.doubles.mesh import MeshProcesses
from tests.doubles.scrape import scrape
from tests.doubles.sdk_close import close
from tests.doubles.tokenizer import SPECIAL_TEXTS, WordTokenizer, text_of
from tests.doubles.wire_client import WireClient
from tests.mesh.foreign import belongings

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(180)]

TOKENIZER = WordTokenizer()
PROMPT = "the people of "
CHAT: Any = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello 世界 🙂"}]
LENGTH = 48


def client_of(mesh: MeshProcesses, key: str = "") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{mesh.base_url}/oai/api/v1", api_key=key or mesh.api_key, max_retries=0)


@pytest.fixture(scope="module")
def client(mesh: MeshProcesses) -> Iterator[openai.OpenAI]:
    with client_of(mesh) as made:
        yield made


def reference(prompt: list[int], seed: int, *, stop: str = "", tokens: int = LENGTH) -> types.SampledSequence:
    """What the engine says after `prompt`."""
    body = types.SampleBody(
        prompt_tokens=np.array(prompt, "<i4").tobytes(), max_tokens=tokens, num_samples=1, temperature=1.0, top_p=1.0
    )
    body.stop.strings.extend([stop] if stop else [])
    return generation.sequence(BASE_WEIGHTS, body, seed, 0)


def ids(sequence: types.SampledSequence) -> list[int]:
    found: list[int] = np.frombuffer(sequence.tokens, "<i4").tolist()
    return found


def encoded(text: str = PROMPT) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=True)


def complete(client: openai.OpenAI, **body: Any) -> Any:
    extra = {"return_token_ids": True, **body.pop("extra_body", {})}
    return client.completions.create(
        **{"model": BASE_MODEL, "prompt": PROMPT, "max_tokens": LENGTH, "seed": 1, "extra_body": extra, **body}
    )


def is_rich(text: str) -> bool:
    """It has characters of three and of four bytes, and none that is broken."""
    return {3, 4} <= {len(character.encode()) for character in text} and "\ufffd" not in text


@pytest.mark.parametrize("seed", range(4))
def test_a_completion_is_what_the_engine_says_streamed_and_whole_PDR_04_PDR_13(
    client: openai.OpenAI, seed: int
) -> None:
    expected = reference(encoded(), seed)
    whole = complete(client, seed=seed).model_dump()
    parts = [one.model_dump() for one in complete(client, seed=seed, stream=True)]
    assert whole["choices"][0]["token_ids"] == ids(expected)
    assert whole["choices"][0]["text"] == text_of(ids(expected))
    assert whole["choices"][0]["finish_reason"] == ("stop" if expected.stopped else "length")
    assert "".join(one["choices"][0]["text"] for one in parts) == whole["choices"][0]["text"]
    assert [token for one in parts for token in one["choices"][0]["token_ids"]] == ids(expected)
    assert [one["choices"][0]["finish_reason"] for one in parts][-1] == whole["choices"][0]["finish_reason"]


def test_characters_whose_bytes_come_in_several_tokens_are_told_whole_PDR_13_PDR_14(client: openai.OpenAI) -> None:
    """Accents, CJK and emoji of two to four tokens each: no event holds a broken one."""
    seed = next(s for s in range(1_000) if is_rich(text_of(ids(reference(encoded(), s)))))
    expected = text_of(ids(reference(encoded(), seed)))
    parts = [one.choices[0].text for one in complete(client, seed=seed, stream=True)]
    assert "".join(parts) == expected
    assert not any("\ufffd" in part for part in parts)


def test_a_conversation_goes_through_the_models_template(client: openai.OpenAI) -> None:
    rendered = TOKENIZER.render(parse_conversation(json.dumps({"messages": CHAT})))
    answer = client.chat.completions.create(
        model=BASE_MODEL, messages=CHAT, seed=3, max_completion_tokens=9, extra_body={"return_token_ids": True}
    )
    told = answer.model_dump()
    assert told["prompt_token_ids"] == rendered
    assert told["choices"][0]["token_ids"] == ids(reference(rendered, 3, tokens=9))
    assert answer.choices[0].message.content == text_of(told["choices"][0]["token_ids"])
    assert answer.usage is not None and answer.usage.prompt_tokens == len(rendered)
    assert answer.usage.completion_tokens == len(told["choices"][0]["token_ids"])


def test_without_a_bound_a_conversation_goes_on_for_more_than_an_engines_default_PDR_06(client: openai.OpenAI) -> None:
    """The end token comes after a few hundred at most; 16 would be an engine's own idea."""
    answer = client.chat.completions.create(model=BASE_MODEL, messages=CHAT, seed=1)
    assert answer.usage is not None and answer.usage.completion_tokens > 16


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_text_over_several_tokens_ends_it_and_is_not_told_PDR_14(client: openai.OpenAI, stream: bool) -> None:
    text = text_of(ids(reference(encoded(), 1)))
    pieces = [TOKENIZER.piece(token).decode(errors="replace") for token in ids(reference(encoded(), 1))]
    stop = next(a[-1] + b[:2] for a, b in zip(pieces[6:], pieces[7:], strict=False) if len(a) > 1 and len(b) > 1)
    assert stop in text
    answer = complete(client, stop=[stop], stream=stream)
    choices = [one.choices[0] for one in answer] if stream else [answer.choices[0]]
    assert "".join(one.text for one in choices) == text[: text.index(stop)]
    assert choices[-1].finish_reason == "stop"


def test_logprobs_are_those_of_the_ids_and_spell_the_text_PDR_15(client: openai.OpenAI) -> None:
    expected = reference(encoded(), 1)
    scores = np.frombuffer(expected.logprobs, "<f4")
    choice = complete(client, logprobs=3).choices[0]
    assert np.array_equal(np.array(choice.logprobs.token_logprobs, "<f4"), scores)
    assert len(choice.logprobs.tokens) == len(ids(expected)) == len(choice.logprobs.top_logprobs)
    chat = client.chat.completions.create(
        model=BASE_MODEL, messages=CHAT, seed=1, max_tokens=40, logprobs=True, top_logprobs=2,
        extra_body={"return_token_ids": True},
    ).model_dump()["choices"][0]  # fmt: skip
    content = chat["logprobs"]["content"]
    assert [bytes(one["bytes"]) for one in content] == [TOKENIZER.piece(token) for token in chat["token_ids"]]
    told = [one for one, token in zip(content, chat["token_ids"], strict=True) if token not in SPECIAL_TEXTS]
    assert b"".join(bytes(one["bytes"]) for one in told).decode(errors="replace") == chat["message"]["content"]
    assert all(len(one["top_logprobs"]) == 2 for one in content)


def test_choices_are_independent_and_repeat_with_the_seed_SAMP_07(client: openai.OpenAI) -> None:
    """Choice i is what seed + i says alone."""
    answer = complete(client, n=3, seed=10)
    assert [choice.model_dump()["token_ids"] for choice in answer.choices] == [
        ids(reference(encoded(), 10 + i)) for i in range(3)
    ]
    assert len({choice.text for choice in answer.choices}) == 3
    assert answer.usage.prompt_tokens == len(encoded())


def test_several_prompts_are_answered_in_their_order(client: openai.OpenAI) -> None:
    """A flat list of ids is one of them."""
    prompts = ["the people", "who made "]
    answer = complete(client, prompt=prompts, n=2, seed=4)
    expected = [ids(reference(encoded(text), 4 + i)) for text in prompts for i in range(2)]
    assert [choice.model_dump()["token_ids"] for choice in answer.choices] == expected
    flat = complete(client, prompt=[5, 6, 7], seed=4).model_dump()
    assert flat["choices"][0]["token_ids"] == ids(reference([5, 6, 7], 4))
    assert answer.usage.prompt_tokens == sum(len(encoded(text)) for text in prompts)


def test_echo_gives_a_prompt_of_ids_back_as_text(client: openai.OpenAI) -> None:
    answer = complete(client, prompt=encoded("the people"), echo=True)
    assert answer.choices[0].text.startswith("the people")


def test_errors_are_the_clients_own_classes(mesh: MeshProcesses, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        complete(client, model="gpt-4")
    with pytest.raises(openai.AuthenticationError):
        client_of(mesh, "tml-nobody").models.list()
    with pytest.raises(openai.BadRequestError) as refused:
        complete(client, prompt=[1] * 3_000)
    assert refused.value.code == "context_length_exceeded" and refused.value.param == "prompt"
    with pytest.raises(openai.BadRequestError) as refused:
        complete(client, prompt=[99_999])
    assert refused.value.param == "prompt"
    image: Any = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=BASE_MODEL, messages=image)
    assert refused.value.param == "messages"


def test_models_are_those_that_can_be_sampled_from(client: openai.OpenAI) -> None:
    assert [one.id for one in client.models.list()] == [BASE_MODEL]
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


def test_a_snapshot_says_what_asample_says_and_not_what_its_base_does(
    mesh: MeshProcesses, client: openai.OpenAI
) -> None:
    tinker = pytest.importorskip("tinker", reason="the SDK is not installed")
    snapshot = asyncio.run(_snapshot(mesh))
    service = tinker.ServiceClient(base_url=mesh.base_url, api_key=mesh.api_key)
    sampler = service.create_sampling_client(model_path=snapshot).result()
    prompt = tinker.types.ModelInput.from_ints(encoded())
    parameters = tinker.types.SamplingParams(max_tokens=LENGTH, seed=1, temperature=1.0)
    sampled = list(sampler.sample(prompt, 1, parameters).result().sequences[0].tokens)
    close(service)
    for model in (snapshot, f"{BASE_MODEL};{snapshot}"):
        answer = complete(client, model=model)
        assert answer.choices[0].model_dump()["token_ids"] == sampled and answer.model == model
        assert client.models.retrieve(model).id == model
    assert sampled != ids(reference(encoded(), 1))


async def _snapshot(mesh: MeshProcesses) -> str:
    wire = WireClient([mesh.base_url], mesh.api_key)
    try:
        return (await belongings(wire)).snapshot
    finally:
        await wire.close()


def in_flight(mesh: MeshProcesses) -> int:
    """Samples that Redis counts for generations."""
    host, port = mesh.mesh.addresses.redis.rsplit(":", 1)
    with Redis(host=host, port=int(port)) as redis:
        return sum(int(redis.zcard(name)) for name in redis.scan_iter("tm:{p:double}:generations:*"))  # type: ignore[arg-type]


def opened(mesh: MeshProcesses, process: str, name: str) -> float:
    return scrape(mesh, process).total(name)


def test_a_client_that_goes_ends_it_down_to_the_sampler_PDR_12(mesh: MeshProcesses, client: openai.OpenAI) -> None:
    mesh.inject("sampler", [{"kind": "sample.stream", "action": "hold_token", "tokens": 3}])
    stream = complete(client, stream=True)
    next(iter(stream))
    assert in_flight(mesh) == 1
    stream.close()
    until(lambda: in_flight(mesh) == 0)
    until(lambda: opened(mesh, "sampler", "tinkermesh_sampler_sequences_open") == 0)
    gateways = mesh.names("gateway")
    until(lambda: sum(opened(mesh, one, "tinkermesh_gateway_completions_open") for one in gateways) == 0)
    mesh.inject("sampler", [])
    assert complete(client).choices[0].model_dump()["token_ids"] == ids(reference(encoded(), 1))


def test_a_sampler_that_breaks_off_is_told_in_the_stream_PDR_10(mesh: MeshProcesses, client: openai.OpenAI) -> None:
    mesh.inject("sampler", [{"kind": "sample.stream", "action": "fail_token", "tokens": 3}])
    said, error = [], None
    try:
        for one in complete(client, stream=True):
            said.append(one.choices[0])
    except openai.APIError as broken:
        error = broken
    assert len(said) == 3 and error is not None and error.code == "stream_interrupted"
    mesh.inject("sampler", [])
    until(lambda: in_flight(mesh) == 0)
    body = {"model": BASE_MODEL, "prompt": PROMPT, "max_tokens": 4, "stream": True}
    url, headers = f"{mesh.base_url}/oai/api/v1/completions", {"authorization": f"Bearer {mesh.api_key}"}
    assert httpx.post(url, json=body, headers=headers, trust_env=False).content.endswith(b"data: [DONE]\n\n")


def test_a_whole_answer_begins_anew_once_where_its_sampler_broke_off_PDR_08(
    mesh: MeshProcesses, client: openai.OpenAI
) -> None:
    """Nobody has seen anything of it; what breaks again and again is a 503."""
    broken = {"kind": "sample.stream", "action": "fail_token", "tokens": 3}
    mesh.inject("sampler", [broken])
    assert complete(client).choices[0].model_dump()["token_ids"] == ids(reference(encoded(), 1))
    mesh.inject("sampler", [{**broken, "times": 0}])
    with pytest.raises(openai.InternalServerError) as failed:
        complete(client)
    assert failed.value.status_code == 503
    mesh.inject("sampler", [])
    until(lambda: in_flight(mesh) == 0)
    assert complete(client).choices[0].model_dump()["token_ids"] == ids(reference(encoded(), 1))


def test_many_at_once_are_all_answered(mesh: MeshProcesses, client: openai.OpenAI) -> None:
    """Over two gateways and two schedulers."""
    answers: dict[int, list[int]] = {}

    def ask(seed: int) -> None:
        parts = complete(client, seed=seed, stream=True)
        answers[seed] = [token for one in parts for token in one.choices[0].model_dump()["token_ids"]]

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == {seed: ids(reference(encoded(), seed)) for seed in range(32)}
    until(lambda: in_flight(mesh) == 0)


def test_a_quota_is_a_rate_limit_error_that_says_which_SEC_10(tmp_path: Path) -> None:
    variables = {"TINKERMESH_SCHEDULER_QUOTA_REQUESTS_PER_SECOND": "0.1"}
    with MeshProcesses(tmp_path / "mesh", variables=variables) as mesh, client_of(mesh) as client:
        complete(client)
        with pytest.raises(openai.RateLimitError) as refused:
            complete(client)
        assert "quota requests_per_second" in refused.value.message
        assert refused.value.response.headers["retry-after"]
