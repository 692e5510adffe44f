"""What the jobs routes refuse before anything of it reaches the scheduler, and what they make of the rest."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.common.errors import InvalidInput, UserError
from services.gateway.routes.jobs import _prepare
from services.gateway.settings import Limits
from services.gateway.validation.jobs import job_tasks
from services.gateway.wire import job_bodies as bodies
from services.gateway.wire.json_body import decode
from tests.contract.gateway.conftest import Client
from tests.contract.gateway.fake_jobs import JOB_ID as JOB
from tests.contract.gateway.test_fuzz import json_values


def made(body: Any) -> Any:
    kind: Any = list[bodies.JobTask] if isinstance(body, list) else bodies.Job
    return job_tasks(decode(msgspec.json.encode(body), kind), Limits())


@pytest.mark.parametrize(
    "task",
    [
        {},
        {"max_tokens": 4},
        {"prompt": None},
        {"prompt": "a", "input": [1]},
        {"input": [1], "continue_from": {"job_id": JOB}},
        {"prompt": "a", "input": [1], "continue_from": {"job_id": JOB}},
    ],
)
@pytest.mark.parametrize("wrap", [lambda task: task, lambda task: [task], lambda task: {"tasks": [task]}])
async def test_no_input_or_several_are_refused_naming_the_rule_JOB_01(client: Client, task: Any, wrap: Any) -> None:
    body = msgspec.json.encode(wrap(task))
    answer = await client.http.post("/v1/control/jobs", content=body, headers=client.headers)
    assert answer.status_code == 400, answer.text
    assert "exactly one of prompt, input and continue_from" in answer.json()["detail"]
    assert answer.json()["error"] == "invalid_input"


@pytest.mark.parametrize("task", [{"prompt": "a"}, {"input": [1, 2]}, {"continue_from": {"job_id": JOB}}])
def test_one_input_of_any_kind_is_enough_JOB_01(task: Any) -> None:
    for body in (task, [task], {"tasks": [task]}):
        assert len(made(body)[2]) == 1


def test_an_object_an_array_and_a_list_of_tasks_say_the_same() -> None:
    task = {"input": [1, 2], "max_tokens": 3, "temperature": 0}
    assert made(task)[2] == made([task])[2] == made({"tasks": [task]})[2]
    (one,) = made(task)[2]
    assert one.input == np.array([1, 2], "<i4").tobytes() and one.HasField("temperature") and one.temperature == 0.0


def test_only_an_object_continues_a_whole_job_JOB_02() -> None:
    reference = {"continue_from": {"job_id": JOB}}
    assert made(reference)[2][0].continue_from.whole_job
    assert not made([reference])[2][0].continue_from.whole_job
    for named in ({"index": 0}, {"task_id": "a"}):
        assert not made({"continue_from": {"job_id": JOB, **named}})[2][0].continue_from.whole_job


def test_null_is_the_base_model_and_nothing_is_inherited_JOB_05() -> None:
    base, path, left_out = (
        made({"prompt": "a", **more})[2][0] for more in ({"lora_path": None}, {"lora_path": "x"}, {})
    )
    assert base.HasField("lora_path") and base.lora_path == "" and path.lora_path == "x"
    assert (
        not left_out.HasField("lora_path") and not left_out.HasField("temperature") and not left_out.HasField("top_p")
    )


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ({"input": []}, "input is empty"),
        ({"input": [1, -1]}, "input, position 1: -1"),
        ({"input": [1, True]}, "bool"),
        ({"prompt": ""}, "prompt is empty"),
        ({"prompt": "é" * (1 << 20) + "a"}, "prompt has 2097153 bytes"),
        ({"prompt": "a", "n": 0}, "n must lie in"),
        ({"prompt": "a", "n": 1000}, "n must lie in"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens must lie in"),
        ({"prompt": "a", "temperature": -1}, "temperature must be >= 0"),
        ({"prompt": "a", "top_p": 0}, "top_p must be > 0"),
        ({"prompt": "a", "top_p": 1.5}, "top_p must lie in"),
        ({"prompt": "a", "top_k": 0}, "top_k must be -1"),
        ({"prompt": "a", "stop": ["x"] * 100}, "stop has 100 entries"),
        ({"prompt": "a", "seed": 1 << 64}, "seed"),
        ({"prompt": "a", "task_id": "x" * 101}, "task_id has 101 characters"),
        ({"prompt": "a", "colour": 1}, "colour"),
        ({"continue_from": {"job_id": JOB, "task_id": "a", "index": 1}}, "not by both"),
        ({"continue_from": {"job_id": JOB, "index": -1}}, "index"),
    ],
)
def test_a_wrong_field_is_named_with_its_task(task: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        made([{"prompt": "fine"}, task])
    with pytest.raises(InvalidInput, match=r"task 1: |\[1\]|tasks\[1\]|\[\.\.\.\]"):
        made([{"prompt": "fine"}, task])


FIELDS = ("prompt", "input", "continue_from", "tasks", "n", "max_tokens", "stop", "seed", "lora_path", "x")


@settings(max_examples=300, deadline=None, database=None)
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, json_values)) | json_values)
def test_any_json_is_a_job_or_refused_with_a_text_API_06(body: Any) -> None:
    try:
        content = msgspec.json.encode(body)
    except (OverflowError, msgspec.MsgspecError):
        return
    try:
        _prepare(content, Limits())
    except UserError as error:
        assert error.message


def test_tasks_beside_a_task_are_refused() -> None:
    with pytest.raises(InvalidInput, match="either tasks or the input of its one task"):
        made({"prompt": "a", "tasks": [{"prompt": "b"}]})


@pytest.mark.parametrize(
    ("method", "path"), [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/results"), ("GET", "/events")]
)
async def test_what_is_no_job_id_does_not_exist(client: Client, method: str, path: str) -> None:
    for name in ("x", "job-1.double", f"{JOB}%2F..", "..%2F..%2Fetc"):
        answer = await client.http.request(method, f"/v1/control/jobs/{name}{path}", headers=client.headers)
        assert answer.status_code == 404, (name, answer.text)


async def test_jobs_need_a_key(client: Client) -> None:
    assert (await client.http.get("/v1/control/jobs")).status_code == 401
    assert (await client.http.post("/v1/control/jobs", content=b"{}")).status_code == 401


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "offset=-1", "limit=x"])
async def test_windows_are_bounded(client: Client, query: str) -> None:
    for path in ("", f"/{JOB}/results"):
        answer = await client.http.get(f"/v1/control/jobs{path}?{query}", headers=client.headers)
        assert answer.status_code == 400 and query.split("=")[0] in answer.json()["detail"]
