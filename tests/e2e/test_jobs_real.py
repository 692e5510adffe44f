"""Jobs and continue_from on the real sampler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.doubles.job_client import JobClient, Json
from tests.doubles.mesh import RealMeshProcesses

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

PROMPT = [72, 101, 108, 108, 111, 44, 32, 119]
GREEDY: Json = {"temperature": 0, "stop": []}
TOLERANCE = 1e-3
"""Of a log-probability: the prefill of a continuation and the decode of the long run are other kernels' sums."""


@pytest.fixture
async def client(real_mesh: RealMeshProcesses) -> AsyncIterator[JobClient]:
    made = JobClient(real_mesh.base_url, real_mesh.api_key)
    yield made
    await made.close()


async def done(client: JobClient, body: Any) -> tuple[str, list[Json]]:
    job_id = await client.create(body)
    job = await client.ended(job_id)
    results = await client.results(job_id)
    assert job["state"] == "done", results
    return job_id, results


async def test_a_greedy_continuation_is_one_long_run_JOB_03_JOB_04_JOB_09(client: JobClient) -> None:
    """8 + 24 -> 32, + 10 -> 42: three parts of one run; one is gone on from again after its own source was deleted."""
    _, (long,) = await done(client, {"input": PROMPT, "max_tokens": 40, **GREEDY})
    a, (first,) = await done(client, {"input": PROMPT, "max_tokens": 24, **GREEDY})
    b, (second,) = await done(client, {"continue_from": {"job_id": a}, "max_tokens": 10, "stop": []})
    c, (third,) = await done(client, {"continue_from": {"job_id": b}, "max_tokens": 6, "stop": []})
    assert [one["usage"]["prompt_tokens"] for one in (first, second, third)] == [8, 32, 42]
    assert first["output_ids"] + second["output_ids"] + third["output_ids"] == long["output_ids"]
    joined = [value for one in (first, second, third) for value in one["output_token_logprobs"]]
    gaps = [abs(x - y) for x, y in zip(joined, long["output_token_logprobs"], strict=True)]
    assert max(gaps) <= TOLERANCE
    assert (await client.http.delete(f"/v1/control/jobs/{a}")).status_code == 204
    _, (again,) = await done(client, {"continue_from": {"job_id": b}, "max_tokens": 6, "stop": []})
    assert again["output_ids"] == third["output_ids"]


async def test_ids_that_are_not_canonical_stay_as_they_are_JOB_03(client: JobClient) -> None:
    """Sampled hot from random weights, the ids are bytes that are no text; a detour over text would change them."""
    hot = {"temperature": 2.0, "seed": 5, "stop": [], "max_tokens": 24}
    source, (first,) = await done(client, {"input": PROMPT, **hot})
    assert "\ufffd" in first["output_text"], "control: the text has lost what the ids hold"
    _, (second,) = await done(client, {"continue_from": {"job_id": source}, "max_tokens": 8, **GREEDY})
    _, (explicit,) = await done(client, {"input": PROMPT + first["output_ids"], "max_tokens": 8, **GREEDY})
    assert second["usage"]["prompt_tokens"] == 32 and second["output_ids"] == explicit["output_ids"]


async def test_a_text_is_tokenized_as_the_engine_does_JOB_10(client: JobClient) -> None:
    source, (first,) = await done(client, {"prompt": "Hello, w", "max_tokens": 4, **GREEDY})
    length = first["usage"]["prompt_tokens"]
    _, (second,) = await done(client, {"continue_from": {"job_id": source}, "max_tokens": 3, "stop": []})
    assert second["usage"]["prompt_tokens"] == length + 4


async def test_a_running_job_is_continued_and_a_killed_sampler_costs_no_token_JOB_06_JOB_15(
    real_mesh: RealMeshProcesses, client: JobClient
) -> None:
    _, (long,) = await done(client, {"input": PROMPT, "max_tokens": 600, **GREEDY})
    source = await client.create({"input": PROMPT, "max_tokens": 600, **GREEDY})
    for _ in range(200):
        answer = await client.post({"continue_from": {"job_id": source}, "max_tokens": 5, "stop": []})
        part = await client.ended(answer.json()["job_id"])
        if part["state"] == "done":
            break
        await asyncio.sleep(0.05)
    restarts = real_mesh.restarts("sampler")
    await asyncio.to_thread(real_mesh.kill, "sampler")
    await asyncio.to_thread(real_mesh.wait_restarted, "sampler", restarts + 1, 200.0)
    (piece,) = await client.results(answer.json()["job_id"])
    k = piece["provenance"]["continued_from"]["output_tokens"]
    assert 0 < k <= 600 and piece["usage"]["prompt_tokens"] == 8 + k
    assert piece["output_ids"] == long["output_ids"][k : k + 5]
    ended = await client.ended(source, 200.0)
    (result,) = await client.results(source)
    assert ended["state"] == "done" and result["output_ids"] == long["output_ids"]
    assert result["output_text"] == long["output_text"] and len(result["output_token_logprobs"]) == 600
