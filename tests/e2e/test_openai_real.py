"""The unmodified openai client on real engines: it says what asample says, token by token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import openai
import pytest
from transformers import AutoTokenizer

from tests.doubles.mesh import RealMeshProcesses
from tests.doubles.sdk_close import close

tinker = pytest.importorskip("tinker", reason="the SDK is not installed")
pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]

TEXT = "the captain set the anchor: Grüße, 世"
LENGTH = 40


@dataclass(frozen=True)
class Both:
    """Two clients of one mesh, and a snapshot after a few real steps."""

    client: openai.OpenAI
    service: Any
    path: str
    base: str
    tokenizer: Any

    def prompt(self) -> list[int]:
        return list(self.tokenizer.encode(TEXT))

    def sampled(self, seed: int = 1, **target: str) -> Any:
        sampler = self.service.create_sampling_client(**target).result()
        parameters = tinker.types.SamplingParams(max_tokens=LENGTH, temperature=0.0, seed=seed)
        prompt = tinker.types.ModelInput.from_ints(self.prompt())
        return sampler.sample(prompt, 1, parameters).result().sequences[0]

    def completed(self, model: str, **body: Any) -> Any:
        extra = {"return_token_ids": True}
        return self.client.completions.create(
            **{"model": model, "prompt": TEXT, "max_tokens": LENGTH, "temperature": 0, "extra_body": extra, **body}
        )


@pytest.fixture(scope="module")
def both(real_mesh: RealMeshProcesses) -> Iterator[Both]:
    name = real_mesh.settings.model_name
    service = tinker.ServiceClient(base_url=real_mesh.base_url, api_key=real_mesh.api_key)
    training = service.create_lora_training_client(base_model=name, rank=8, seed=5).result()
    for step in range(3):
        tokens = np.random.default_rng(step).integers(2, 512, 65)
        training.forward_backward([_datum(tokens.tolist())], "cross_entropy").result()
        training.optim_step(tinker.types.AdamParams(learning_rate=5e-3, eps=1e-8)).result()
    path = training.save_weights_for_sampler("openai").result().path
    with openai.OpenAI(base_url=f"{real_mesh.base_url}/oai/api/v1", api_key=real_mesh.api_key) as client:
        yield Both(client, service, path, name, AutoTokenizer.from_pretrained(name))
    close(service)


def _datum(tokens: list[int]) -> Any:
    from tests.doubles.sdk_datums import supervised

    return supervised(tokens)


def test_an_adapters_greedy_completion_is_what_asample_samples(both: Both) -> None:
    """Negative control: its base model says something else."""
    expected = both.sampled(model_path=both.path)
    for model in (both.path, f"{both.base};{both.path}"):
        answer = both.completed(model).model_dump()
        assert answer["choices"][0]["prompt_token_ids"] == both.prompt()
        assert answer["choices"][0]["token_ids"] == list(expected.tokens)
    base = both.completed(both.base).model_dump()["choices"][0]["token_ids"]
    assert base == list(both.sampled(base_model=both.base).tokens) != list(expected.tokens)


def test_its_text_and_logprobs_are_those_of_the_ids_PDR_15(both: Both) -> None:
    expected = both.sampled(model_path=both.path)
    choice = both.completed(both.path, logprobs=3).choices[0]
    ids = choice.model_dump()["token_ids"]
    assert choice.text == both.tokenizer.decode(ids, skip_special_tokens=True)
    assert np.allclose(choice.logprobs.token_logprobs, expected.logprobs, atol=1e-4)
    assert len(choice.logprobs.tokens) == len(ids) == len(choice.logprobs.text_offset)
    best = choice.logprobs.top_logprobs  # of a model with random weights some ids are no token: their text is empty
    assert max(map(len, best)) == 3 and min(map(len, best)) >= 1
    assert all(one[token] == max(one.values()) for one, token in zip(best, choice.logprobs.tokens, strict=True))
    whole = [both.tokenizer.decode([one]) for one in ids]
    told = [(a, b) for a, b in zip(choice.logprobs.tokens, whole, strict=True) if "\ufffd" not in b]
    assert told and all(a == b for a, b in told)


def test_a_stream_says_the_same_with_its_usage_PDR_13(both: Both) -> None:
    whole = both.completed(both.path)
    events = list(both.completed(both.path, stream=True, stream_options={"include_usage": True}))
    assert "".join(one.choices[0].text for one in events if one.choices) == whole.choices[0].text
    usage = events[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(both.prompt()), len(_ids(events)))
    assert usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens


def _ids(events: list[Any]) -> list[int]:
    return [token for one in events if one.choices for token in one.choices[0].model_dump()["token_ids"]]


def test_a_stop_text_ends_it_before_itself_PDR_14(both: Both) -> None:
    text = both.completed(both.path).choices[0].text
    stop = text[5:8]
    answer = both.completed(both.path, stop=stop).choices[0]
    assert answer.finish_reason == "stop" and answer.text == text[: text.index(stop)]
