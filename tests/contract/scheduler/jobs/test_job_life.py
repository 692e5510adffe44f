"""A job from its creation to its deletion."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis
from tinkermesh.v1 import jobs_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import Busy, InvalidInput, KeyConflict, MissingResource, Unavailable
from services.common.ids import JobId
from services.scheduler.jobs.limits import JobLimits
from services.scheduler.tenancy.records import Quotas
from tests.contract.scheduler.jobs.rig import (
    ALICE,
    BASE,
    BOB,
    FACTS,
    FOREIGN,
    MINE,
    POOL,
    FixedDirectory,
    JobRig,
    go_on,
    ids_task,
    text_task,
)
from tests.doubles.eventually import eventually
from tests.doubles.generations import long_run, text_of, tokens_of


async def test_tasks_run_and_their_results_have_text_ids_logprobs_finish_and_usage_JOB_04(jobs: JobRig) -> None:
    job, results = await jobs.done(ids_task([5, 6, 7], 6), text_task("hello", 3, task_id="greeting"), name="both")
    assert (job.state, job.done, job.failed, job.tasks) == ("done", 2, 0, 2)
    assert (job.prompt_tokens, job.output_tokens) == (3 + 6, 6 + 3)
    first, second = results
    assert first["task_id"] == "task-0" and second["task_id"] == "greeting"
    assert first["output_ids"] == long_run([5, 6, 7], 6)
    assert first["output_text"] == text_of(first["output_ids"])
    assert len(first["output_token_logprobs"]) == 6 and all(value < 0 for value in first["output_token_logprobs"])
    assert first["finish_reason"] == "length"
    assert first["usage"] == {"prompt_tokens": 3, "completion_tokens": 6, "cached_tokens": 0, "total_tokens": 9}
    assert second["output_ids"] == long_run(tokens_of("hello"), 3)


async def test_several_samples_of_a_task_are_told_apart(jobs: JobRig) -> None:
    _, (result,) = await jobs.done(ids_task([5], 4, n=3, seed=70))
    assert [one["sample_index"] for one in result["samples"]] == [0, 1, 2]
    assert [one["output_ids"] for one in result["samples"]] == [long_run([5], 4, seed=70 + n) for n in range(3)]
    assert result["usage"]["completion_tokens"] == 12 and "output_ids" not in result


async def test_a_text_is_tokenized_by_the_pool_and_kept_beside_its_task_JOB_10(jobs: JobRig) -> None:
    job, _ = await jobs.done(text_task("some words"))
    assert jobs.port.tokenized == ["some words"]
    kept = jobs.files.input(await jobs.place(job), 0)
    assert kept is not None and kept.ids == tokens_of("some words")


async def test_a_task_without_an_input_is_refused_JOB_01(jobs: JobRig) -> None:
    with pytest.raises(InvalidInput, match="exactly one of prompt, input and continue_from"):
        await jobs.create(pb.JobTask(n=1))


async def test_a_repeat_under_its_key_finds_its_job_and_another_body_is_a_conflict(jobs: JobRig) -> None:
    made = await asyncio.gather(*(jobs.create(ids_task([5]), key="k") for _ in range(5)))
    assert len({job.job_id for job in made}) == 1 and sum(not job.repeated for job in made) == 1
    with pytest.raises(KeyConflict, match="another job"):
        await jobs.create(ids_task([6]), key="k")
    assert (await jobs.create(ids_task([5]), key="k", tenant=BOB)).job_id != made[0].job_id
    place = await jobs.place(made[0])
    assert [one for one in jobs.files.places(POOL) if one.job_id == made[0].job_id] == [place]


class TwoPools(FixedDirectory):
    second = types.PoolFacts(pool="second", base_model="tinkermesh/second", vocab_size=512, max_context=2048)

    async def facts(self, pool: str) -> types.PoolFacts:
        return self.second if pool == self.second.pool else FACTS

    async def pools(self) -> list[types.PoolFacts]:
        return [FACTS, self.second]


async def test_a_key_makes_one_job_whichever_pool_a_body_names(jobs: JobRig) -> None:
    jobs.directory = TwoPools()
    await jobs.create(ids_task([5]), key="k", base_model=BASE)
    with pytest.raises(KeyConflict, match="another job"):
        await jobs.create(ids_task([5]), key="k", base_model=TwoPools.second.base_model)


async def test_a_repeat_finds_its_job_when_what_it_continued_has_gone(jobs: JobRig) -> None:
    source, _ = await jobs.done(ids_task([5]))
    made = await jobs.create(go_on(source), key="k")
    await jobs.book.delete(source.job_id, ALICE)
    again = await jobs.create(go_on(source), key="k")
    assert again.repeated and again.job_id == made.job_id


async def test_a_job_whose_admission_was_not_answered_has_its_files(jobs: JobRig) -> None:
    real, lost = jobs.store._call, [Unavailable("Redis has the write, but not on disk yet")]

    async def call(name: str, *arguments: Any) -> Any:
        answer = await real(name, *arguments)
        if name == "job_admit" and lost:
            raise lost.pop()
        return answer

    jobs.store._call = call  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        await jobs.create(ids_task([5], 4), key="k")
    job, (result,) = await jobs.done(ids_task([5], 4), key="k")
    assert job.state == "done" and result["output_ids"] == long_run([5], 4)


async def test_jobs_of_a_tenant_are_bounded_ended_ones_too(jobs: JobRig) -> None:
    jobs.limits = JobLimits(jobs_per_tenant=1, flush_seconds=0.02)
    job, _ = await jobs.done(ids_task([5]), key="k")
    with pytest.raises(Busy, match="1 jobs are kept for you; delete some"):
        await jobs.create(ids_task([5]))
    assert (await jobs.create(ids_task([5]), key="k")).repeated
    await jobs.create(ids_task([5]), tenant=BOB)
    await jobs.book.delete(job.job_id, ALICE)
    await jobs.create(ids_task([5]))


async def test_a_job_that_is_refused_leaves_no_files(jobs: JobRig) -> None:
    jobs.open_tasks = 1
    with pytest.raises(Busy, match="job_tasks"):
        await jobs.create(ids_task([5]), ids_task([6]))
    assert not list((jobs.root / "jobs" / POOL).iterdir())


async def test_a_task_that_cannot_run_fails_alone_and_its_job_says_so_JOB_13_JOB_16(jobs: JobRig) -> None:
    job, results = await jobs.done(
        ids_task([5]), ids_task([5], 3000), ids_task([600]), ids_task([5], lora_path=FOREIGN), text_task("x" * 3000, 2)
    )
    assert (job.state, job.done, job.failed) == ("partial", 1, 4)
    said = [result.get("error", {}).get("message", "") for result in results]
    assert said[0] == "" and "exceeds the context of 2048" in said[1] and "token 600 is outside" in said[2]
    assert "belongs to another tenant" in said[3] and "leaves no room" in said[4]
    assert len(jobs.port.requests) == 1, "nothing of the others was dispatched"


async def test_a_job_of_which_nothing_could_run_has_failed_JOB_13(jobs: JobRig) -> None:
    job, _ = await jobs.done(ids_task([600]), ids_task([601]))
    assert (job.state, job.failed) == ("failed", 2)


async def test_an_adapter_that_the_samplers_refuse_fails_its_task_only_SAMP_03_JOB_13(jobs: JobRig) -> None:
    def refuse(wanted: object) -> None:
        if wanted.adapter is not None:  # type: ignore[attr-defined]
            raise MissingResource("stage 'load adapter': mine on sampler-d: no such directory")

    jobs.port.refuse = refuse
    job, (good, bad) = await jobs.done(ids_task([5]), ids_task([5], lora_path=MINE))
    assert (job.state, good["state"], bad["state"]) == ("partial", "done", "failed")
    assert bad["error"] == {"message": "stage 'load adapter': mine on sampler-d: no such directory", "category": "user"}


async def test_a_job_is_nobody_elses_JOB_14(jobs: JobRig) -> None:
    job, _ = await jobs.done(ids_task([5]))
    unknown = f"job-{'0' * 32}.{POOL}"
    for work in (jobs.book.get, jobs.book.cancel, jobs.book.delete):
        with pytest.raises(MissingResource) as theirs:
            await work(job.job_id, BOB)
        with pytest.raises(MissingResource) as nobodys:
            await work(unknown, BOB)
        assert theirs.value.message.replace(job.job_id, unknown) == nobodys.value.message
    assert (await jobs.book.page(pb.ListJobsRequest(tenant_id=BOB, limit=10)))[0] == 0


async def test_jobs_are_listed_by_page_state_and_name(jobs: JobRig) -> None:
    for number in range(5):
        await jobs.done(ids_task([5 + number]), name=f"n{number % 2}")
    await jobs.done(ids_task([600]))

    async def listed(**fields: object) -> tuple[int, list[str]]:
        total, page = await jobs.book.page(pb.ListJobsRequest(tenant_id=ALICE, **{"limit": 10, **fields}))  # type: ignore[arg-type]
        return total, [job.name for job in page]

    assert await listed() == (6, ["", "n0", "n1", "n0", "n1", "n0"])
    assert await listed(limit=2, offset=1) == (6, ["n0", "n1"])
    assert await listed(state="failed") == (1, [""])
    assert await listed(name="n1", limit=1) == (2, ["n1"])
    with pytest.raises(InvalidInput, match="state"):
        await listed(state="lost")


async def test_a_cancelled_job_ends_at_once_and_keeps_what_it_has(jobs: JobRig) -> None:
    jobs.port.gate, jobs.port.gate_after = asyncio.Event(), 3
    jobs.limits = JobLimits(running_per_pool=1, flush_seconds=0.02)
    await jobs.stop()
    await jobs.start()
    job = await jobs.create(ids_task([5], 100), ids_task([6]), ids_task([7]))
    await eventually(lambda: jobs.saved(job))
    assert (await jobs.book.cancel(job.job_id, ALICE)).queued == 0
    ended = await jobs.ended(job)
    assert (ended.state, ended.cancelled) == ("cancelled", 3)
    results = await jobs.results(job)
    assert [result["state"] for result in results] == ["cancelled"] * 3
    assert results[0]["output_ids"] == long_run([5], 3) and results[0]["finish_reason"] == "cancelled"
    assert jobs.port.in_flight == 0
    await jobs.book.cancel(job.job_id, ALICE)  # again: nothing happens


async def test_a_deleted_job_is_gone_with_its_files_also_while_it_runs(jobs: JobRig, redis_client: Redis) -> None:
    jobs.port.gate = asyncio.Event()
    job = await jobs.create(ids_task([5]), ids_task([6]))
    await eventually(lambda: jobs.port.in_flight)
    await jobs.book.delete(job.job_id, ALICE)
    with pytest.raises(MissingResource):
        await jobs.get(job)
    await eventually(lambda: _swept(jobs))
    assert jobs.files.places(POOL) == [] and jobs.port.in_flight == 0
    left = [key async for key in redis_client.scan_iter(match=f"*{job.job_id}*")]
    assert left == [] and await redis_client.zcard(f"tm:{{t:{ALICE}}}:jobs") == 0
    assert await redis_client.hget(f"tm:{{p:{POOL}}}:usage:{ALICE}", "job_tasks") == b"0"  # type: ignore[misc]


async def _swept(jobs: JobRig) -> bool:
    return await jobs.sweeper.sweep(POOL) > 0


async def test_an_ended_job_goes_when_its_time_is_over(idle: JobRig) -> None:
    idle.limits = JobLimits(keep_ms=0)
    await idle.start()
    job, _ = await idle.done(ids_task([5]))
    assert await idle.sweeper.sweep(POOL) == 1
    with pytest.raises(MissingResource):
        await idle.get(job)


async def test_what_was_never_admitted_goes_and_what_was_stays(jobs: JobRig) -> None:
    job, _ = await jobs.done(ids_task([5]))
    (jobs.files.path(await jobs.place(job)) / "admitted").unlink()  # lost: its row still names it
    draft = jobs.files.draft(JobId("f" * 32, POOL))
    assert await jobs.sweeper.drop_residues(POOL, 3600.0) == 0, "it may be on its way"
    assert await jobs.sweeper.drop_residues(POOL, -1.0) == 1
    assert not draft._stage.exists() and len(await jobs.results(job)) == 1


async def test_open_tasks_are_bounded_and_come_back(jobs: JobRig) -> None:
    jobs.open_tasks = 3
    jobs.port.gate = asyncio.Event()
    first = await jobs.create(ids_task([5]), ids_task([6]))
    with pytest.raises(Busy, match="quota job_tasks: 2 of 3 are open and 2 more do not fit"):
        await jobs.create(ids_task([7]), ids_task([8]))
    jobs.port.gate.set()
    await jobs.ended(first)
    await jobs.create(ids_task([7]), ids_task([8]))


async def test_tokens_per_minute_hold_a_tenants_tasks_back_and_not_anothers(jobs: JobRig) -> None:
    jobs.quotas[ALICE] = Quotas(tokens_per_minute=600)
    mine = await jobs.create(*(ids_task([5], 599) for _ in range(3)))
    theirs, _ = await jobs.done(ids_task([5], 599), tenant=BOB)
    held = await jobs.get(mine)
    assert theirs.state == "done" and held.queued >= 1 and held.state == "running"


async def test_tenants_take_turns(idle: JobRig) -> None:
    idle.limits = JobLimits(running_per_pool=1, flush_seconds=0.02)
    mine = await idle.create(*(ids_task([5 + n], 2) for n in range(8)))
    theirs = await idle.create(*(ids_task([100 + n], 2) for n in range(2)), tenant=BOB)
    await idle.start()
    await idle.ended(mine)
    await idle.ended(theirs, BOB)
    order = [wanted.tenant_id for wanted in idle.port.placed]
    assert order[:4].count(BOB) == 2, order


@pytest.mark.parametrize(("samples_wait", "at_once"), [(False, 2), (True, 1)])
async def test_few_tasks_run_at_once_and_one_while_samples_wait(idle: JobRig, samples_wait: bool, at_once: int) -> None:
    """None at all would be starvation: there may be samples for hours."""
    idle.limits = JobLimits(running_per_pool=2, flush_seconds=0.02)
    idle.interactive = samples_wait
    idle.port.gate = asyncio.Event()
    await idle.start()
    job = await idle.create(*(ids_task([5 + n], 8) for n in range(6)))
    await eventually(lambda: len(idle.port.requests) == at_once and bool(idle.held_back) == samples_wait)
    idle.port.gate.set()
    await idle.ended(job)
    assert idle.port.most_in_flight == at_once
    assert all(wanted.batch for wanted in idle.port.placed)


async def test_a_task_nobody_can_take_fails_after_its_bound_naming_the_stage(idle: JobRig) -> None:
    def refuse(_wanted: object) -> None:
        raise Unavailable("stage 'place': pool double has no live sampler")

    idle.limits = JobLimits(trouble_seconds=0.1, flush_seconds=0.02)
    idle.port.refuse = refuse
    await idle.start()
    job, (result,) = await idle.done(ids_task([5]))
    assert job.state == "failed" and result["error"]["category"] == "server"
    assert "stage 'place'" in result["error"]["message"]


async def test_whole_jobs_are_continued_alone(jobs: JobRig) -> None:
    job, _ = await jobs.done(ids_task([5]))
    with pytest.raises(InvalidInput, match="job of its own"):
        await jobs.create(go_on(job, whole=True), ids_task([6]))
