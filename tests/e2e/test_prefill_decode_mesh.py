"""Prefill and decode in one mesh of real processes: clients see one sampler, and its losses as those of one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from tinkermesh.v1.types_pb2 import AdapterRef

from tests.contract.sampler.client import Sequence
from tests.doubles.admin import running_samples
from tests.doubles.eventually import until
from tests.doubles.job_client import JobClient, Json
from tests.e2e.pd_mesh import DECODE, PREFILL, READY_SECONDS, PdMesh, running_pd_mesh, snapshot

pytestmark = [pytest.mark.engine, pytest.mark.legs, pytest.mark.timeout(900)]

PROMPT = list(range(40, 111))
"""Two whole cache blocks of 32 and a part of one."""
TEXT = "the captain set the anchor, and the crew went down to sleep at once"
LENGTH = 40
LONG = 900
"""Seconds of decoding. The tiny model ends by itself a little later."""
TOLERANCE = 1e-3
"""Of a log-probability: prompts that are cached and ones that are not are summed by other kernels."""
LOADED, RECOMPUTED = "tinkermesh_sampler_kv_blocks_loaded_total", "tinkermesh_sampler_kv_recomputed_tokens_total"
RETRIES = "tinkermesh_scheduler_sample_retries_total"


@pytest.fixture(scope="module")
def pd(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[PdMesh]:
    with running_pd_mesh(tmp_path_factory.mktemp("pd"), tiny_model) as running:
        yield running


@pytest.fixture(scope="module")
def long(pd: PdMesh) -> Sequence:
    """What one sampler answers when it is asked for a long sequence: the same after every restart."""
    return pd.whole(PROMPT, LONG, pd.adapter)


@pytest.fixture
async def jobs(pd: PdMesh) -> AsyncIterator[JobClient]:
    made = JobClient(pd.mesh.base_url, pd.mesh.api_key)
    yield made
    await made.close()


def check_same(sequence: Any, whole: Sequence) -> None:
    assert list(sequence.tokens) == whole.tokens
    assert np.abs(np.array(sequence.logprobs) - whole.logprobs).max() < TOLERANCE


def decoding(pd: PdMesh) -> bool:
    return running_samples(pd.mesh.mesh.addresses.samplers[1]) > 0


def killed(pd: PdMesh, name: str) -> int:
    """kill -9; answers how often it will have been restarted."""
    restarts = pd.mesh.restarts(name) + 1
    pd.mesh.kill(name)
    return restarts


def recovered(pd: PdMesh, name: str, restarts: int) -> None:
    pd.mesh.wait_restarted(name, restarts, READY_SECONDS)
    pd.wait_paired()


def test_a_greedy_sample_is_what_one_sampler_answers_PDR_02_TAIL_01(pd: PdMesh) -> None:
    """Of the base model and of an adapter, which say different things; the decode sampler computes no prompt."""
    before = pd.metric(DECODE, LOADED)
    answers = []
    for path, adapter in (("", None), (pd.path, pd.adapter)):
        (sequence,) = pd.sample(path, PROMPT, LENGTH).result().sequences
        check_same(sequence, pd.whole(PROMPT, LENGTH, adapter))
        answers.append(list(sequence.tokens))
    assert answers[0] != answers[1]
    assert pd.metric(DECODE, LOADED) - before >= 6
    assert pd.metric(DECODE, RECOMPUTED) == 0


def test_three_sequences_go_on_from_one_prompt_SAMP_07(pd: PdMesh) -> None:
    """Greedy ones are one sampler's; drawn ones differ from each other, and are the same when asked for again."""
    whole = pd.whole(PROMPT, LENGTH)
    for sequence in pd.sample("", PROMPT, LENGTH, count=3).result().sequences:
        check_same(sequence, whole)
    drawn = [pd.sample("", PROMPT, LENGTH, count=3, temperature=1.0).result().sequences for _ in range(2)]
    first, again = ([list(one.tokens) for one in sequences] for sequences in drawn)
    assert first == again and len({tuple(tokens) for tokens in first}) == 3


def test_a_stream_has_the_logprobs_of_its_ids_PDR_13_PDR_15(pd: PdMesh) -> None:
    prompt = pd.tokenizer.encode(TEXT)
    whole = pd.whole(prompt, LENGTH, pd.adapter)
    plain = pd.completed(pd.path, TEXT, max_tokens=LENGTH, logprobs=2).choices[0]
    events = [one.choices[0] for one in pd.completed(pd.path, TEXT, max_tokens=LENGTH, logprobs=2, stream=True)]
    ids = [token for one in events for token in one.model_dump().get("token_ids") or []]
    told = [one.logprobs for one in events if one.logprobs]
    assert ids == whole.tokens == plain.model_dump()["token_ids"]
    assert "".join(one.text for one in events) == plain.text
    for field in ("tokens", "text_offset"):
        assert [value for one in told for value in getattr(one, field)] == getattr(plain.logprobs, field)
    joined = [value for one in told for value in one.token_logprobs]
    assert np.abs(np.array(joined) - whole.logprobs).max() < TOLERANCE
    assert [max(best.values()) for one in told for best in one.top_logprobs] == joined
    assert len(events) > 2, "it came at once"


def seam_text(pd: PdMesh) -> tuple[str, str]:
    """A prompt after which the first two tokens are text, and that text: it lies on both sides of the seam."""
    for number in range(60):
        prompt = f"{TEXT} {number}"
        pieces = [pd.tokenizer.decode([one]) for one in pd.whole(pd.tokenizer.encode(prompt), 2).tokens]
        if all(pieces) and "\ufffd" not in "".join(pieces):
            return prompt, "".join(pieces)
    raise AssertionError("no prompt gives two tokens of text")


def test_a_stop_text_across_the_seam_ends_it_PDR_14(pd: PdMesh) -> None:
    """Negative control: without it the text is there."""
    prompt, stop = seam_text(pd)
    assert pd.completed(pd.base, prompt, max_tokens=8).choices[0].text.startswith(stop)
    answer = pd.completed(pd.base, prompt, max_tokens=8, stop=stop).choices[0]
    assert (answer.finish_reason, answer.text) == ("stop", "")
    events = [one.choices[0] for one in pd.completed(pd.base, prompt, max_tokens=8, stop=stop, stream=True)]
    assert "".join(one.text for one in events) == "" and events[-1].finish_reason == "stop"


async def test_a_job_goes_on_where_another_ended_JOB_03_JOB_09(pd: PdMesh, jobs: JobClient) -> None:
    first = await done(jobs, {"input": PROMPT, "max_tokens": 24, "temperature": 0, "stop": []})
    body: Json = {"continue_from": {"job_id": first["job_id"]}, "max_tokens": 10, "stop": []}
    second = await done(jobs, body)
    whole = await asyncio.to_thread(pd.whole, PROMPT, 34)
    assert first["output_ids"] + second["output_ids"] == whole.tokens
    logprobs = np.array(first["output_token_logprobs"] + second["output_token_logprobs"])
    assert np.abs(logprobs - whole.logprobs).max() < TOLERANCE


async def done(jobs: JobClient, body: Json) -> Json:
    """The only result of a job, with the job's id."""
    job_id = await jobs.create(body)
    job = await jobs.ended(job_id)
    (result,) = await jobs.results(job_id)
    assert job["state"] == "done", result
    return {**result, "job_id": job_id}


def test_an_adapter_nobody_has_yet_is_answered_and_on_both_samplers_then_SAMP_06(pd: PdMesh) -> None:
    """A snapshot is loaded as soon as it is saved, so an operator has to unload it first."""
    before = pd.adapters()["decode"]
    path = snapshot(pd.training, "cold")
    (name,) = until(lambda: pd.adapters()["decode"] & pd.adapters()["prefill"] - before)
    (adapter,) = (one for one in pd.engines()["decode"].adapters if one.name == name)
    pd.unload(name)
    assert [name in loaded for loaded in pd.adapters().values()] == [False, False]
    (sequence,) = pd.sample(path, PROMPT, LENGTH).result().sequences
    assert [name in loaded for loaded in pd.adapters().values()] == [True, True]
    check_same(sequence, pd.whole(PROMPT, LENGTH, AdapterRef(name=name, path=adapter.path)))


def test_a_decode_sampler_killed_before_anything_was_told_costs_nothing_but_time_PDR_08_GAP_15(
    pd: PdMesh, long: Sequence
) -> None:
    retries = pd.metric("scheduler-0", RETRIES)
    asked = pd.sample(pd.path, PROMPT, LONG)
    until(lambda: decoding(pd))
    restarts = killed(pd, DECODE)
    (sequence,) = asked.result(READY_SECONDS).sequences
    recovered(pd, DECODE, restarts)
    check_same(sequence, long)
    assert 1 <= pd.metric("scheduler-0", RETRIES) - retries < 20, "it asked for a lost sampler again and again"
    until(pd.idle)


def test_a_decode_sampler_killed_in_a_stream_is_a_typed_error_and_comes_back_PDR_08(pd: PdMesh) -> None:
    stream = pd.completed(pd.base, TEXT, max_tokens=LONG, stream=True)
    until(lambda: decoding(pd))
    seen = [next(stream), next(stream)]
    restarts = killed(pd, DECODE)
    with pytest.raises(openai.APIError) as caught:
        seen.extend(stream)
    assert caught.value.code == "pd_decode_interrupted", caught.value.body
    assert seen[0].choices[0].model_dump()["token_ids"]
    recovered(pd, DECODE, restarts)
    whole = pd.whole(pd.tokenizer.encode(TEXT), LENGTH)
    assert pd.completed(pd.base, TEXT, max_tokens=LENGTH).choices[0].model_dump()["token_ids"] == whole.tokens
    until(pd.idle)
    assert pd.metric("scheduler-0", "tinkermesh_scheduler_generations_open") == 0


def test_a_killed_prefill_sampler_is_not_missed_by_what_it_has_handed_on(pd: PdMesh, long: Sequence) -> None:
    """What comes while it is away waits for it: one that decodes is none that computes prompts."""
    retries = pd.metric("scheduler-0", RETRIES)
    asked = pd.sample(pd.path, PROMPT, LONG)
    until(lambda: decoding(pd))
    restarts = killed(pd, PREFILL)
    (sequence,) = asked.result(READY_SECONDS).sequences
    assert pd.metric("scheduler-0", RETRIES) == retries
    (other,) = pd.sample(pd.path, PROMPT[:-1], LENGTH).result(READY_SECONDS).sequences
    recovered(pd, PREFILL, restarts)
    check_same(sequence, long)
    check_same(other, pd.whole(PROMPT[:-1], LENGTH, pd.adapter))
    assert pd.metric(DECODE, RECOMPUTED) == 0
    until(pd.idle)
