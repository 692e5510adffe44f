"""continue_from: what a task goes on from, what it inherits, and that it does not depend on its source."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from tinkermesh.v1 import jobs_pb2 as pb

from services.common.errors import InvalidInput, MissingResource
from services.scheduler.jobs import sources
from services.scheduler.jobs.files import JobFiles
from tests.contract.scheduler.jobs.rig import (
    ALICE,
    BOB,
    FACTS,
    FOREIGN,
    MINE,
    OTHER,
    POOL,
    JobRig,
    go_on,
    ids_task,
    text_task,
)
from tests.doubles.eventually import eventually
from tests.doubles.generations import long_run, tokens_of

PROMPT = [11, 12, 13, 14, 15, 16, 17, 18]


def prompts(jobs: JobRig) -> list[list[int]]:
    """What the samplers were sent, in order."""
    return [np.frombuffer(one.sample.body.prompt_tokens, "<i4").tolist() for one in jobs.port.requests]


async def test_eight_and_twenty_four_make_thirty_two_JOB_03_JOB_04(jobs: JobRig) -> None:
    source, (first,) = await jobs.done(ids_task(PROMPT, 24))
    _, (second,) = await jobs.done(go_on(source, 10))
    assert second["usage"]["prompt_tokens"] == 32 and prompts(jobs)[1] == PROMPT + first["output_ids"]
    assert second["output_ids"] == long_run(PROMPT, 34)[24:], "only what is new, as one long run has it"
    assert len(second["output_token_logprobs"]) == len(second["output_ids"]) == 10
    assert set(second) == {*first, "provenance"} and len(second["output_text"]) == 10
    assert second["provenance"]["continued_from"] == {
        "job_id": source.job_id, "task_id": "task-0", "input_tokens": 8, "output_tokens": 24, "source_state": "done",
    }  # fmt: skip


async def test_ids_that_no_tokenizer_would_make_of_the_text_stay_as_they_are_JOB_03(jobs: JobRig) -> None:
    """The generated ids of the double are not what its tokenizer makes of their text."""
    source, (first,) = await jobs.done(text_task("ab", 5))
    assert tokens_of(first["output_text"])[1:] != first["output_ids"]
    await jobs.done(go_on(source, 2))
    assert prompts(jobs)[-1] == tokens_of("ab") + first["output_ids"]
    assert jobs.port.tokenized == ["ab"], "the text was tokenized once, its output never"


async def test_a_whole_job_is_continued_task_by_task_JOB_02(jobs: JobRig) -> None:
    source, first = await jobs.done(ids_task([5], 3, task_id="a"), ids_task([6, 7], 4, task_id="b", temperature=0.25))
    job, second = await jobs.done(go_on(source, 2, whole=True))
    assert job.tasks == 2 and [one["task_id"] for one in second] == ["a", "b"]
    assert [one["usage"]["prompt_tokens"] for one in second] == [1 + 3, 2 + 4]
    sent = {len(one.sample.body.prompt_tokens) // 4: one.sample.body.temperature for one in jobs.port.requests[2:]}
    assert sent == {4: 1.0, 6: 0.25}
    assert sorted(prompts(jobs)[2:]) == sorted([[5, *first[0]["output_ids"]], [6, 7, *first[1]["output_ids"]]])


async def test_a_task_is_named_by_id_or_index_and_a_sample_by_its_own_JOB_02(jobs: JobRig) -> None:
    source, first = await jobs.done(ids_task([5], 3, task_id="a"), ids_task([6], 3, n=2, seed=1, task_id="b"))
    job, second = await jobs.done(
        go_on(source, 1, task_ref="a"), go_on(source, 1, index=0), go_on(source, 1, index=1, sample=1)
    )
    assert job.state == "done"
    by_prompt = [5, *first[0]["output_ids"]], [6, *first[1]["samples"][1]["output_ids"]]
    assert sorted(prompts(jobs)[2:]) == sorted([by_prompt[0], by_prompt[0], by_prompt[1]])
    assert second[2]["provenance"]["continued_from"]["sample_index"] == 1


async def test_what_is_left_out_is_inherited_and_what_is_given_wins_JOB_05(jobs: JobRig) -> None:
    source, _ = await jobs.done(ids_task([5], 3, temperature=0.5, top_p=0.25, lora_path=MINE))
    await jobs.done(go_on(source, 2))
    await jobs.done(go_on(source, 2, temperature=0.0, top_p=1.0, lora_path=""))
    await jobs.done(go_on(source, 2, lora_path=OTHER))
    inherited, given, other = (one.sample for one in jobs.port.requests[1:])
    assert (inherited.body.temperature, inherited.body.top_p) == (0.5, 0.25) and "mine" in inherited.adapter.path
    assert (given.body.temperature, given.body.top_p) == (0.0, 1.0) and not given.HasField("adapter")
    assert "other" in other.adapter.path and other.body.temperature == 0.5


async def test_max_tokens_is_not_inherited_JOB_05(jobs: JobRig) -> None:
    source, _ = await jobs.done(ids_task([5], 3))
    task = go_on(source)
    task.ClearField("max_tokens")
    _, (result,) = await jobs.done(task)
    assert jobs.port.requests[1].sample.body.max_tokens == FACTS.max_context - 4
    assert result["usage"]["completion_tokens"] == FACTS.max_context - 4


async def test_an_inherited_adapter_is_the_version_the_source_ran_with_JOB_05(jobs: JobRig) -> None:
    source, _ = await jobs.done(ids_task([5], 3, lora_path=MINE))
    before = jobs.port.requests[0].sample.adapter
    jobs.artifacts.versions[MINE] = "runs/m/sampler_weights/_version_mine_2"
    await jobs.done(go_on(source, 2))
    await jobs.done(go_on(source, 2, lora_path=MINE))
    assert jobs.port.requests[1].sample.adapter == before != jobs.port.requests[2].sample.adapter
    del jobs.artifacts.versions[MINE]
    job, (result,) = await jobs.done(go_on(source, 2))
    assert job.state == "failed" and "does not exist" in result["error"]["message"]


async def test_a_running_source_goes_on_unaffected_JOB_06(jobs: JobRig) -> None:
    jobs.port.gate, jobs.port.gate_after = asyncio.Event(), 120
    source = await jobs.create(ids_task(PROMPT, 500))
    await eventually(lambda: _saved(jobs, source, 120))
    continuation = await jobs.create(go_on(source, 10))
    kept = jobs.files.input(await jobs.place(continuation), 0)
    assert kept is not None and kept.origin is not None
    k = kept.origin.output_tokens
    assert k == 120 and kept.origin.source_state == "running" and len(kept.ids) == 8 + k
    assert (await jobs.get(source)).state == "running"
    jobs.port.gate.set()
    (whole,) = await jobs.results(await jobs.ended(source))
    (result,) = await jobs.results(await jobs.ended(continuation))
    assert len(whole["output_ids"]) == 500 and kept.ids == PROMPT + whole["output_ids"][:k]
    assert result["usage"]["prompt_tokens"] == 8 + k and result["output_ids"] == whole["output_ids"][k : k + 10]


async def _saved(jobs: JobRig, job: pb.Job, tokens: int) -> bool:
    return await jobs.saved(job) >= tokens


async def test_a_cancelled_source_can_be_continued_JOB_06(jobs: JobRig) -> None:
    jobs.port.gate, jobs.port.gate_after = asyncio.Event(), 7
    source = await jobs.create(ids_task(PROMPT, 100))
    await eventually(lambda: _saved(jobs, source, 7))
    await jobs.book.cancel(source.job_id, ALICE)
    await jobs.ended(source)
    jobs.port.gate.set()
    _, (result,) = await jobs.done(go_on(source, 5))
    assert result["usage"]["prompt_tokens"] == 15 and result["output_ids"] == long_run(PROMPT, 12)[7:]
    assert result["provenance"]["continued_from"]["source_state"] == "cancelled"


async def test_a_source_without_tokens_is_an_error_not_an_empty_sample_JOB_07(jobs: JobRig) -> None:
    jobs.port.gate = asyncio.Event()
    source = await jobs.create(ids_task(PROMPT), ids_task([600]))
    await eventually(lambda: jobs.port.requests)
    job, (running, failed) = await jobs.done(go_on(source, 5, index=0), go_on(source, 5, index=1))
    assert job.state == "failed" and len(jobs.port.requests) == 1
    assert "task-0" in running["error"]["message"] and "has no generated tokens" in running["error"]["message"]
    assert "running" in running["error"]["message"] and "failed" in failed["error"]["message"]


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ({}, ["several tasks", "0 ('a')", "1 ('b')"]),
        ({"index": 2}, ["index 2 is not in", "1 ('b')"]),
        ({"task_ref": "c"}, ["'c' is not in", "0 ('a')"]),
        ({"index": 1}, ["several samples", "sample_index 0 to 1"]),
        ({"index": 1, "sample": 2}, ["sample_index 2 does not exist", "0 to 1"]),
        ({"index": 0, "sample": 1}, ["sample_index 1 does not exist", "0 only"]),
    ],
)
async def test_a_reference_to_nothing_or_to_several_lists_the_candidates_JOB_08(
    jobs: JobRig, reference: dict[str, Any], words: list[str]
) -> None:
    source, _ = await jobs.done(ids_task([5], 3, task_id="a"), ids_task([6], 3, n=2, task_id="b"))
    with pytest.raises(InvalidInput) as refused:
        await jobs.create(go_on(source, 1, **reference))
    for word in (*words, "continue_from", source.job_id):
        assert word in refused.value.message


async def test_an_unknown_job_is_refused_with_the_tenants_own_JOB_08_JOB_14(jobs: JobRig) -> None:
    mine, _ = await jobs.done(ids_task([5]))
    theirs, _ = await jobs.done(ids_task([6]), tenant=BOB)
    unknown = f"job-{'0' * 32}.{POOL}"
    said = []
    for job_id in (unknown, theirs.job_id):
        with pytest.raises(MissingResource, match=mine.job_id) as refused:
            await jobs.create(go_on(job_id, 1))
        said.append(refused.value.message.replace(job_id, "JOB"))
    assert said[0] == said[1] and theirs.job_id not in said[0]
    with pytest.raises(MissingResource, match="you have no jobs"):
        await jobs.create(go_on("nonsense"), tenant="tenant-new")
    await jobs.book.delete(mine.job_id, ALICE)
    with pytest.raises(MissingResource):
        await jobs.create(go_on(mine, 1))


async def test_a_continuation_of_a_continuation_needs_no_source_any_more_JOB_09(jobs: JobRig) -> None:
    first, (a,) = await jobs.done(ids_task(PROMPT, 24))
    second, (b,) = await jobs.done(go_on(first, 10))
    third, (c,) = await jobs.done(go_on(second, 6))
    assert c["usage"]["prompt_tokens"] == 42
    await jobs.book.delete(first.job_id, ALICE)
    await eventually(lambda: jobs.sweeper.sweep(POOL))
    again, (d,) = await jobs.done(go_on(second, 6))
    assert prompts(jobs)[-1] == prompts(jobs)[2] == PROMPT + a["output_ids"] + b["output_ids"]
    assert c["output_ids"] == d["output_ids"] == long_run(PROMPT, 40)[34:]
    kept = JobFiles(jobs.root).input(await jobs.place(again), 0)
    assert kept is not None and len(kept.ids) == 42


async def test_a_repeat_under_its_key_does_not_look_at_its_source_again(jobs: JobRig) -> None:
    source, _ = await jobs.done(ids_task(PROMPT, 24))
    job, _ = await jobs.done(go_on(source, 2), key="k")
    assert (await jobs.create(go_on(source, 2), key="k")).job_id == job.job_id
    assert len(jobs.files.places(POOL)) == 2


async def test_a_continuation_too_long_for_the_context_fails_before_it_is_dispatched_JOB_16(jobs: JobRig) -> None:
    source, _ = await jobs.done(ids_task(PROMPT, 2000))
    job, (result,) = await jobs.done(go_on(source, 100))
    assert job.state == "failed" and len(jobs.port.requests) == 1
    assert "input of 2008 tokens + max_tokens 100 exceeds the context of 2048" in result["error"]["message"]


async def test_a_foreign_adapter_is_no_way_around_inheritance_JOB_14(jobs: JobRig) -> None:
    source, _ = await jobs.done(ids_task([5], 3))
    job, (result,) = await jobs.done(go_on(source, 1, lora_path=FOREIGN))
    assert job.state == "failed" and "belongs to another tenant" in result["error"]["message"]


async def test_one_request_continues_a_bounded_number_of_tasks(jobs: JobRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MOST_TASKS", 3)
    first, _ = await jobs.done(ids_task([5]), ids_task([6]))
    second, _ = await jobs.done(ids_task([7]), ids_task([8]))
    await jobs.create(go_on(first, index=0), go_on(first, index=1))
    with pytest.raises(InvalidInput, match="more than 3 tasks together"):
        await jobs.create(go_on(first, index=0), go_on(second, index=1))
