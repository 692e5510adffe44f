"""Jobs through the loss of samplers, of the scheduler, and of Redis."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
from redis.asyncio import Redis
from tinkermesh.v1 import jobs_pb2 as pb

from services.common.errors import ServerError, Unavailable
from services.common.ids import parse_job_id
from services.scheduler.jobs import dispatcher
from services.scheduler.jobs.limits import JobLimits
from services.scheduler.jobs.records import Header, Task
from tests.contract.scheduler.jobs.rig import ALICE, BASE, POOL, JobRig, go_on, ids_task, text_task
from tests.doubles.eventually import eventually
from tests.doubles.generations import long_run, next_token, text_of, tokens_of

CREATED = 1_700_000_000_000
LOST = Unavailable("sampler sampler-1: stage 'next token': it went away")


def started(jobs: JobRig) -> list[int]:
    """Prompt lengths of the streams, in order."""
    return [len(one.sample.body.prompt_tokens) // 4 for one in jobs.port.requests]


async def saved(jobs: JobRig, job: pb.Job, tokens: int, **where: int) -> bool:
    return await jobs.saved(job, **where) >= tokens


def whole(result: dict[str, Any], prompt: list[int], tokens: int) -> None:
    """As one long run: ids, a logprob for each, and the text of all."""
    assert result["output_ids"] == long_run(prompt, tokens)
    ids = np.array(prompt, "<i4").tobytes()
    for token, logprob in zip(result["output_ids"], result["output_token_logprobs"], strict=True):
        assert (token, logprob) == next_token(ids, "", 0)
        ids += np.array([token], "<i4").tobytes()
    assert result["output_text"] == text_of(result["output_ids"])


async def test_a_task_whose_sampler_is_lost_goes_on_from_what_it_has_JOB_15(jobs: JobRig) -> None:
    jobs.port.fail_after, jobs.port.fail_at = {0: LOST, 1: LOST}, 4
    job, (result,) = await jobs.done(ids_task([5, 6], 12))
    assert job.state == "done" and started(jobs) == [2, 6, 10]
    assert [one.seam_tokens for one in jobs.port.requests] == [0, 4, 8]
    assert [one.sample.body.max_tokens for one in jobs.port.requests] == [12, 8, 4]
    whole(result, [5, 6], 12)
    assert result["usage"]["prompt_tokens"] == 2 and result["usage"]["completion_tokens"] == 12
    assert result["provenance"]["segments"] == [
        {"start": start, "tokens": 4, "samplers": [f"sampler-{number}"]} for number, start in enumerate((0, 4, 8), 1)
    ]


async def test_each_sample_of_a_task_goes_on_where_it_was_JOB_15(jobs: JobRig) -> None:
    jobs.port.fail_after, jobs.port.fail_at = {0: LOST}, 4
    _, (result,) = await jobs.done(ids_task([5], 9, n=3))
    assert started(jobs) == [1, 5, 5, 5]
    for one in result["samples"]:
        whole(one, [5], 9)
        assert [segment["tokens"] for segment in one["provenance"]["segments"]] == [4, 5]


async def test_a_seeded_sample_does_not_draw_the_same_numbers_again_JOB_15(jobs: JobRig) -> None:
    jobs.port.fail_after, jobs.port.fail_at = {0: LOST}, 4
    await jobs.done(ids_task([5], 9, n=2, seed=40))
    first, second, third = (one.sample.body.seed for one in jobs.port.requests)
    assert first == 40 and len({40, 41, second, third}) == 4


async def test_a_task_that_takes_samplers_with_it_is_given_up_with_what_it_has(jobs: JobRig) -> None:
    jobs.port.fail_after = dict.fromkeys(range(100), LOST)
    job, (result,) = await jobs.done(ids_task([5], 9))
    assert job.state == "failed" and result["error"]["category"] == "server" and len(jobs.port.requests) == 3
    assert "stage 'next token'" in result["error"]["message"] and result["finish_reason"] == "error"


async def test_an_empty_stream_is_no_success(jobs: JobRig) -> None:
    jobs.port.fail_after = dict.fromkeys(range(100), ServerError("sampler-1: the stream was empty"))
    job, (result,) = await jobs.done(ids_task([5], 9))
    assert job.state == "failed" and "the stream was empty" in result["error"]["message"]


async def test_a_new_leader_goes_on_with_what_was_saved_JOB_12_JOB_15(jobs: JobRig) -> None:
    jobs.port.gate, jobs.port.gate_after = asyncio.Event(), 5
    job = await jobs.create(ids_task([5, 6], 12), text_task("hello", 8))
    await eventually(lambda: saved(jobs, job, 5))
    await eventually(lambda: saved(jobs, job, 5, index=1))
    await jobs.kill()
    assert (await jobs.get(job)).running == 2
    jobs.port.gate.set()
    await jobs.start()
    ended = await jobs.ended(job)
    first, second = await jobs.results(job)
    assert ended.state == "done" and sorted(started(jobs)[2:]) == [2 + 5, 6 + 5]
    whole(first, [5, 6], 12)
    assert [segment["start"] for segment in first["provenance"]["segments"]] == [0, 5]
    assert second["output_ids"] == long_run(tokens_of("hello"), 8) and jobs.port.tokenized == ["hello"]


class Gate(asyncio.Event):
    """It tells when a stream stands before it: the tokens before have been taken."""

    reached = False

    async def wait(self) -> Literal[True]:
        self.reached = True
        return await super().wait()


async def test_an_orderly_stop_saves_the_last_token_JOB_12(jobs: JobRig) -> None:
    jobs.limits = JobLimits(flush_seconds=600.0)
    await jobs.stop()
    await jobs.start()
    gate = Gate()
    jobs.port.gate, jobs.port.gate_after = gate, 5
    job = await jobs.create(ids_task([5, 6], 12))
    await eventually(lambda: gate.reached)
    await jobs.stop()
    assert await jobs.saved(job) == 5


async def test_a_finished_sample_is_not_generated_again_after_a_crash_JOB_12(jobs: JobRig) -> None:
    """The text file of the result could not be written before the crash, its tokens were."""
    real = jobs.files.put_result
    jobs.files.put_result = lambda *_: (_ for _ in ()).throw(OSError(28, "full"))  # type: ignore[method-assign]
    job = await jobs.create(ids_task([5], 6))
    await eventually(lambda: saved(jobs, job, 6))
    await jobs.kill()
    jobs.files.put_result = real  # type: ignore[method-assign]
    await jobs.start()
    await jobs.ended(job)
    assert len(jobs.port.requests) == 1
    (result,) = await jobs.results(job)
    whole(result, [5], 6)


async def test_a_full_store_holds_results_back_and_loses_none_JOB_12(jobs: JobRig) -> None:
    real, full = jobs.files.put_result, True

    def put(*arguments: Any) -> None:
        if full:
            raise OSError(28, "No space left on device")
        real(*arguments)

    jobs.files.put_result = put  # type: ignore[method-assign]
    job = await jobs.create(ids_task([5], 6))
    await eventually(lambda: saved(jobs, job, 6))
    assert (await jobs.get(job)).state == "running"
    full = False
    assert (await jobs.ended(job)).state == "done"


async def test_a_superseded_leader_writes_nothing_that_counts_JOB_12(jobs: JobRig) -> None:
    jobs.port.gate = asyncio.Event()
    job = await jobs.create(ids_task([5], 6))
    await eventually(lambda: jobs.port.requests)
    zombie, jobs._tasks = jobs._tasks, []
    await jobs.start()
    await eventually(lambda: len(jobs.port.requests) == 2)
    jobs.port.gate.set()
    await jobs.ended(job)
    await asyncio.wait([zombie[1]])
    entry = (await jobs.store.entries(parse_job_id(job.job_id), [0]))[0]
    assert entry.term == jobs.term and (await jobs.get(job)).done == 1
    (result,) = await jobs.results(job)
    whole(result, [5], 6)
    zombie[0].cancel()


async def test_a_cancelled_job_whose_leader_died_ends_with_what_was_saved_JOB_12(jobs: JobRig) -> None:
    jobs.port.gate, jobs.port.gate_after = asyncio.Event(), 5
    job = await jobs.create(ids_task([5], 12))
    await eventually(lambda: saved(jobs, job, 5))
    await jobs.kill()
    assert (await jobs.book.cancel(job.job_id, ALICE)).state == "cancelling"
    await jobs.start()
    assert (await jobs.ended(job)).state == "cancelled"
    (result,) = await jobs.results(job)
    assert result["output_ids"] == long_run([5], 5) and len(jobs.port.requests) == 1


async def test_all_jobs_return_from_the_store_when_redis_forgot_them_JOB_12(jobs: JobRig) -> None:
    first, before = await jobs.done(ids_task([5], 3), ids_task([600]), name="first")
    jobs.port.gate = asyncio.Event()
    second = await jobs.create(ids_task([6], 4), ids_task([7], 4))
    third = await jobs.create(ids_task([8], 4))
    await eventually(lambda: len(jobs.port.requests) == 4)
    await jobs.book.cancel(third.job_id, ALICE)
    await jobs.ended(third)
    await jobs.kill()
    await jobs.redis.flushall()
    await jobs.functions.load()
    jobs.port.gate.set()
    await jobs.start()
    assert (await jobs.ended(second)).done == 2
    back = await jobs.get(first)
    assert (back.state, back.name, back.done, back.failed, back.output_tokens) == ("partial", "first", 1, 1, 3)
    assert await jobs.results(first) == before and (await jobs.get(third)).state == "cancelled"
    total, page = await jobs.book.page(pb.ListJobsRequest(tenant_id=ALICE, limit=10))
    assert total == 3 and {job.job_id for job in page} == {first.job_id, second.job_id, third.job_id}


async def test_torn_files_are_told_and_left_out_and_the_rest_returns_JOB_12(
    jobs: JobRig, caplog: pytest.LogCaptureFixture
) -> None:
    torn, whole_one, short = [(await jobs.done(ids_task([5 + n], 3), ids_task([6 + n], 3)))[0] for n in range(3)]
    header = jobs.files.path(await jobs.place(torn)) / "job.json"
    header.write_bytes(header.read_bytes()[:20])
    lines = jobs.files.path(await jobs.place(short)) / "tasks.jsonl"
    lines.write_bytes(lines.read_bytes().splitlines(keepends=True)[0])
    place = jobs.files.path(await jobs.place(whole_one))
    result = next(place.glob("result_0001.*"))
    result.write_bytes(result.read_bytes()[:10])
    await jobs.stop()
    await jobs.redis.flushall()
    await jobs.functions.load()
    with caplog.at_level(logging.ERROR):
        await jobs.start()
        assert (await jobs.ended(whole_one)).done == 2, "the torn result was generated again"
    said = [record.getMessage() for record in caplog.records]
    for job in (torn, short):
        assert any(job.job_id in text and "left out" in text for text in said), said
    assert jobs.files.path(await jobs.place(whole_one)) == place and header.exists()


async def test_a_torn_line_fails_its_task_only_JOB_12_JOB_13(idle: JobRig) -> None:
    job = await idle.create(ids_task([5], 3), ids_task([6], 3))
    lines = idle.files.path(await idle.place(job)) / "tasks.jsonl"
    first, second = lines.read_bytes().splitlines(keepends=True)
    lines.write_bytes(b"{" + b"x" * (len(first) - 2) + b"\n" + second)
    await idle.start()
    ended = await idle.ended(job)
    assert (ended.state, ended.done, ended.failed) == ("partial", 1, 1)
    assert "cannot be read" in (await idle.results(job))[0]["error"]["message"]


async def test_a_job_without_its_files_fails_and_does_not_hang_JOB_12(idle: JobRig) -> None:
    job = await idle.create(ids_task([5], 3))
    path = idle.files.path(await idle.place(job))
    (path / "tasks.jsonl").unlink()
    await idle.start()
    assert (await idle.ended(job)).state == "failed"


async def test_a_job_whose_directory_is_gone_fails_and_stops_nobody_JOB_12(idle: JobRig) -> None:
    job = await idle.create(ids_task([5], 3))
    shutil.rmtree(idle.files.path(await idle.place(job)))
    other = await idle.create(ids_task([6], 3))
    await idle.start()
    assert (await idle.ended(other)).state == "done"


async def test_a_task_whose_directory_goes_while_it_runs_ends_and_its_job_can_be_deleted_JOB_12(
    jobs: JobRig, redis_client: Redis
) -> None:
    jobs.port.gate = asyncio.Event()
    job = await jobs.create(ids_task([5], 3))
    await eventually(lambda: jobs.port.requests)
    shutil.rmtree(jobs.files.path(await jobs.place(job)))
    jobs.port.gate.set()
    assert (await jobs.ended(job)).state == "failed"
    (result,) = await jobs.results(job)
    assert "missing in the shared store" in result["error"]["message"]
    await jobs.book.delete(job.job_id, ALICE)
    assert await jobs.sweeper.sweep(POOL) == 1
    assert not [key async for key in redis_client.scan_iter(match=f"*{job.job_id}*")]


async def test_a_bug_in_jobs_begins_them_anew_and_ends_nothing_else(
    idle: JobRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dispatcher, "AGAIN_SECONDS", 0.01)
    real, broken = idle.store.open_after, [ZeroDivisionError("a bug")]

    async def open_after(*arguments: Any) -> Any:
        if broken:
            raise broken.pop()
        return await real(*arguments)

    idle.store.open_after = open_after  # type: ignore[method-assign]
    await idle.start()
    await idle.done(ids_task([5], 3))
    assert any("failed unexpectedly" in record.getMessage() for record in caplog.records)


async def test_five_hundred_jobs_return_JOB_12(idle: JobRig) -> None:
    made = [await idle.create(ids_task([5 + n % 400], 3)) for n in range(500)]
    await idle.start()
    await eventually(lambda: len(idle.port.requests) > 50)
    await idle.kill()
    await idle.start()
    for job in made:
        assert (await idle.ended(job)).state == "done"
    total, _ = await idle.book.page(pb.ListJobsRequest(tenant_id=ALICE, limit=1))
    assert total == 500
    for number in (0, 57, 250, 499):
        (result,) = await idle.results(made[number])
        whole(result, [5 + number % 400], 3)


# ---- records of a release without continue_from ---------------------------------------------


def old_job(jobs: JobRig, *, state: str = "done", results: bool = True) -> str:
    """As it lay in the store: tasks in the header, no ids of the prompt, no logprobs, no terms."""
    job_id = f"job-{'ab' * 16}.{POOL}"
    directory = jobs.root / "jobs" / POOL / f"job-{'ab' * 16}"
    directory.mkdir(parents=True)
    task = {"prompt": "a prompt of 20 chars", "max_tokens": 966, "temperature": 0.7}
    record = {
        "job_id": job_id,
        "tenant_id": ALICE,
        "base_model": BASE,
        "state": state,
        "created_unix_ms": CREATED,
    }
    (directory / "job.json").write_text(json.dumps({**record, "tasks": [task]}))
    if results:
        ids = [int(n) for n in np.random.default_rng(1).integers(1, 500, 966)]
        (directory / "result_0000.json").write_text(
            json.dumps({"output_text": "…", "output_ids": ids, "finish_reason": "length"})
        )
    return job_id


async def test_an_old_record_loads_lists_and_is_continued_JOB_11(idle: JobRig) -> None:
    job_id = old_job(idle)
    await idle.start()
    job = await idle.ended(pb.Job(job_id=job_id))
    assert (job.state, job.tasks, job.done, job.created_unix_ms) == ("done", 1, 1, CREATED)
    assert (await idle.book.page(pb.ListJobsRequest(tenant_id=ALICE, limit=5)))[1] == [job]
    (old,) = await idle.results(job)
    assert len(old["output_ids"]) == 966 and idle.port.tokenized == []
    _, (result,) = await idle.done(go_on(job_id, 5))
    assert result["usage"]["prompt_tokens"] == 21 + 966 == 987
    assert idle.port.tokenized == ["a prompt of 20 chars"]
    assert idle.port.requests[0].sample.body.temperature == 0.7
    sent = np.frombuffer(idle.port.requests[0].sample.body.prompt_tokens, "<i4").tolist()
    assert sent == tokens_of("a prompt of 20 chars") + old["output_ids"]


async def test_an_old_job_that_was_running_is_run_JOB_11_JOB_12(idle: JobRig) -> None:
    job_id = old_job(idle, state="running", results=False)
    await idle.start()
    assert (await idle.ended(pb.Job(job_id=job_id))).output_tokens == 966


def test_every_field_of_a_record_but_its_identity_has_a_default_JOB_11() -> None:
    assert msgspec.json.decode(b"{}", type=Task) == Task()
    assert msgspec.json.decode(b'{"job_id": "j", "tenant_id": "t"}', type=Header) == Header("j", "t")


async def test_a_directory_that_was_never_admitted_does_not_come_back(idle: JobRig) -> None:
    job = await idle.create(ids_task([5], 3))
    place = idle.files.path(await idle.place(job))
    (place / "admitted").unlink()
    await idle.redis.flushall()
    await idle.functions.load()
    await idle.start()
    await idle.done(ids_task([6], 3))
    assert await idle.store.row(parse_job_id(job.job_id)) is None
    shutil.rmtree(place)
