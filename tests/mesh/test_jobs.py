"""Jobs over a whole mesh: HTTP in, results out, through the death of every process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from tests.doubles.eventually import eventually
from tests.doubles.job_client import JobClient, Json
from tests.doubles.mesh import MeshProcesses
from tests.doubles.tokenizer import WordTokenizer
from tests.doubles.wire_client import WireClient
from tests.mesh.main_path import created, saved

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(280)]

PROMPT = [11, 12, 13, 14, 15, 16, 17, 18]
NO_STOP: Json = {"stop": [], "temperature": 0}
SLOW = [{"kind": "sample.stream", "action": "delay_token", "seconds": 0.02, "times": 0}]


@pytest.fixture
async def client(mesh: MeshProcesses) -> AsyncIterator[JobClient]:
    made = JobClient(mesh.base_url, mesh.api_key)
    yield made
    await made.close()


@pytest.fixture
async def fresh(fresh_mesh: MeshProcesses) -> AsyncIterator[JobClient]:
    made = JobClient(fresh_mesh.base_url, fresh_mesh.api_key)
    yield made
    await made.close()


def task(tokens: int, prompt: list[int] | None = None, **fields: object) -> Json:
    return {"input": prompt or PROMPT, "max_tokens": tokens, **NO_STOP, **fields}


async def one(client: JobClient, body: object) -> Json:
    """The result of a job of one task, which is done."""
    job_id = await client.create(body)
    job = await client.ended(job_id)
    assert job["state"] == "done", await client.results(job_id)
    return (await client.results(job_id))[0]


async def test_eight_and_twenty_four_make_thirty_two_and_equal_one_long_run_JOB_03_JOB_04(client: JobClient) -> None:
    long = await one(client, task(34))
    source = await client.create(task(24))
    await client.ended(source)
    (first,) = await client.results(source)
    second = await one(client, {"continue_from": {"job_id": source}, "max_tokens": 10, "stop": []})
    assert {**second["usage"], "cached_tokens": 0} == {
        "prompt_tokens": 32,
        "completion_tokens": 10,
        "cached_tokens": 0,
        "total_tokens": 42,
    }
    assert first["output_ids"] + second["output_ids"] == long["output_ids"]
    assert len(second["output_token_logprobs"]) == 10 and second["finish_reason"] == "length"


async def test_a_result_larger_than_a_message_comes_whole(mesh: MeshProcesses, client: JobClient) -> None:
    job = await client.create([task(2), task(2)])
    await client.ended(job)
    directory = next(Path(mesh.settings.store).glob(f"jobs/*/{job.split('.')[0]}.*"))
    (file,) = directory.glob("result_0000.*.json")
    result = json.loads(file.read_bytes())
    result["output_text"] = "".join(f"{n:07}" for n in range(800_000))
    file.write_text(json.dumps(result))
    large, small = await client.results(job)
    assert large["output_text"] == result["output_text"] and small["index"] == 1


async def test_a_text_is_tokenized_by_the_sampler_JOB_10(client: JobClient) -> None:
    result = await one(client, {"prompt": "the people of Köln €", "max_tokens": 3, **NO_STOP})
    ids = WordTokenizer().encode("the people of Köln €", add_special_tokens=True)
    assert result["usage"]["prompt_tokens"] == len(ids)
    assert (await one(client, task(3, ids)))["output_ids"] == result["output_ids"]


async def test_an_adapter_is_sampled_with_and_inherited_JOB_05(mesh: MeshProcesses, client: JobClient) -> None:
    wire = WireClient([mesh.base_url], mesh.api_key)
    model = await created(wire, await wire.session())
    path = await saved(wire, model, 1, "snap", "save_weights_for_sampler")
    await wire.close()
    source = await client.create([task(6, lora_path=path), task(6)])
    await client.ended(source)
    tuned, base = await client.results(source)
    assert tuned["output_ids"] != base["output_ids"]
    long = await one(client, task(10, lora_path=path))
    more = await one(client, [{"continue_from": {"job_id": source, "index": 0}, "max_tokens": 4, "stop": []}])
    assert tuned["output_ids"] + more["output_ids"] == long["output_ids"]
    plain = {"continue_from": {"job_id": source, "index": 0}, "max_tokens": 4, "stop": [], "lora_path": None}
    assert (await one(client, [plain]))["output_ids"] != more["output_ids"]


async def test_errors_are_answers_JOB_01_JOB_08_JOB_14(mesh: MeshProcesses, client: JobClient) -> None:
    answer = await client.post([{"max_tokens": 3}])
    assert answer.status_code == 400 and "exactly one of" in answer.json()["detail"]
    source = await client.create([task(2), task(2)])
    await client.ended(source)
    answer = await client.post([{"continue_from": {"job_id": source}}])
    assert answer.status_code == 400 and "task-1" in answer.json()["detail"]
    mesh.add_key("tml-jobs-of-a-stranger")
    stranger = JobClient(mesh.base_url, "tml-jobs-of-a-stranger")
    answer = await stranger.post({"continue_from": {"job_id": source}})
    assert answer.status_code == 404 and "does not exist; you have no jobs" in answer.json()["detail"]
    await stranger.close()


async def test_events_tell_progress_to_the_end(mesh: MeshProcesses, client: JobClient) -> None:
    job_id = await client.create([task(4, [5 + n]) for n in range(6)])
    told = [event async for event in client.events(job_id)]
    assert told[-1]["state"] == "done" and told[-1]["tasks"]["done"] == 6
    counts = [event["tasks"]["done"] for event in told]
    assert counts == sorted(counts)


async def test_a_repeat_under_its_key_answers_the_job_it_made(client: JobClient) -> None:
    body = [task(3)]
    made = await client.post(body, **{"x-idempotency-key": "job-once"})
    again = await client.post(body, **{"x-idempotency-key": "job-once"})
    assert (made.status_code, again.status_code) == (201, 200) and made.json()["job_id"] == again.json()["job_id"]
    other = await client.post([task(4)], **{"x-idempotency-key": "job-once"})
    assert other.status_code == 400 and other.json()["error"] == "key_conflict"


async def test_what_changes_a_job_leaves_an_audit_line_SEC_10(mesh: MeshProcesses, client: JobClient) -> None:
    job_id = await client.create(task(3))
    await client.ended(job_id)
    await client.http.post(f"/v1/control/jobs/{job_id}/cancel")
    await client.http.delete(f"/v1/control/jobs/{job_id}")
    lines = [line for name in mesh.names("gateway") for line in mesh.logs(name).splitlines() if job_id in line]
    for op in ("create_job", "cancel_job", "delete_job"):
        (line,) = [line for line in lines if f'"{op}"' in line]
        assert '"admitted"' in line and "tml-" not in line


async def test_a_cancelled_job_is_continued_JOB_06(mesh: MeshProcesses, client: JobClient) -> None:
    mesh.inject("sampler", SLOW)
    try:
        source = await client.create(task(400))
        async with Redis.from_url(f"redis://{mesh.mesh.addresses.redis}") as redis:
            await eventually(lambda: redis.keys(f"*:jobout:{source}:0:0"))  # a few tokens are saved, however many
        answer = await client.http.post(f"/v1/control/jobs/{source}/cancel")
        assert answer.status_code == 200
        assert (await client.ended(source))["state"] == "cancelled"
    finally:
        mesh.inject("sampler", [])
    (part,) = await client.results(source)
    k = len(part["output_ids"])
    assert 0 < k < 400 and part["finish_reason"] == "cancelled"
    more = await one(client, {"continue_from": {"job_id": source}, "max_tokens": 5, "stop": []})
    assert more["usage"]["prompt_tokens"] == 8 + k
    assert part["output_ids"] + more["output_ids"] == (await one(client, task(k + 5)))["output_ids"]


async def test_a_deleted_job_and_its_files_are_gone(mesh: MeshProcesses, client: JobClient) -> None:
    job_id = await client.create(task(3))
    await client.ended(job_id)
    files = Path(mesh.settings.store) / "jobs"
    assert list(files.rglob(f"{job_id.split('.')[0]}*"))
    assert (await client.http.delete(f"/v1/control/jobs/{job_id}")).status_code == 204
    assert (await client.http.get(f"/v1/control/jobs/{job_id}")).status_code == 404
    await eventually(lambda: not list(files.rglob(f"{job_id.split('.')[0]}*")))


# ---- kill -9 of everything --------------------------------------------------------------------


async def test_nothing_is_lost_whatever_is_killed_JOB_12_JOB_15(fresh_mesh: MeshProcesses, fresh: JobClient) -> None:
    """Sampler, both schedulers, a gateway and Redis, in the middle of a job: every task comes out as one long run."""
    whole = [(await one(fresh, task(60, [5 + n])))["output_ids"] for n in range(8)]
    fresh_mesh.inject("sampler", SLOW)
    job_id = await fresh.create([task(60, [5 + n]) for n in range(8)], key="stormy")
    for name in ("sampler", "scheduler-0", "redis", "scheduler-1", "gateway-0", "sampler"):
        await asyncio.sleep(0.5)
        await asyncio.to_thread(_kill, fresh_mesh, name)
    fresh_mesh.inject("sampler", [])
    job = await fresh.ended(job_id, 180.0)
    results = await fresh.results(job_id)
    assert (job["state"], job["tasks"]["done"]) == ("done", 8), results
    assert [result["output_ids"] for result in results] == whole
    assert all(len(r["output_token_logprobs"]) == 60 for r in results)
    segments = [result["provenance"]["segments"] for result in results]
    assert any(len(one) > 1 for one in segments), "something was interrupted"
    assert all(sum(part["tokens"] for part in one) == 60 for one in segments)


def _kill(mesh: MeshProcesses, name: str) -> None:
    restarts = mesh.restarts(name)
    mesh.kill(name)
    mesh.wait_restarted(name, restarts + 1)


async def test_five_hundred_jobs_outlive_a_restart_of_every_process_JOB_12(
    fresh_mesh: MeshProcesses, fresh: JobClient
) -> None:
    made = [await fresh.create(task(4, [5 + n % 400, 1 + n // 400]), key=f"job-{n}") for n in range(500)]
    assert len(set(made)) == 500
    await asyncio.gather(
        *(asyncio.to_thread(_kill, fresh_mesh, name) for name in ("redis", "scheduler-0", "scheduler-1", "sampler")),
        *(asyncio.to_thread(_kill, fresh_mesh, name) for name in ("gateway-0", "gateway-1", "trainer")),
    )
    states = [(await fresh.ended(job_id, 180.0))["state"] for job_id in made]
    assert states == ["done"] * 500
    listed = await fresh.http.get("/v1/control/jobs?state=done&limit=1")
    assert listed.json()["cursor"]["total_count"] == 500
    again = await fresh.create(task(4, [5, 1]), key="job-0")
    assert again == made[0], "the key is remembered, too"
    (first,) = await fresh.results(made[0])
    assert first["output_ids"] == (await one(fresh, task(4, [5, 1])))["output_ids"]
