"""A job's changes as server-sent events."""

from __future__ import annotations

import logging

import msgspec
import pytest
from tinkermesh.v1 import jobs_pb2 as pb

from services.common.errors import MissingResource
from tests.contract.gateway.conftest import Client
from tests.contract.gateway.fake_jobs import JOB_ID
from tests.contract.gateway.fake_scheduler import FakeScheduler

EVENTS = f"/v1/control/jobs/{JOB_ID}/events"


def job(state: str, ended: int = 0) -> pb.Job:
    return pb.Job(job_id=JOB_ID, state=state, ended_unix_ms=ended)


async def test_each_change_is_an_event_that_proxies_pass_on_at_once(client: Client, scheduler: FakeScheduler) -> None:
    scheduler.jobs.changes = [job("queued"), job("running"), job("done", 5)]
    answer = await client.http.get(EVENTS, headers=client.headers)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert (answer.headers["x-accel-buffering"], answer.headers["cache-control"]) == ("no", "no-cache")
    events = [block.split("\n") for block in answer.text.removesuffix("\n\n").split("\n\n")]
    assert [kind for kind, _ in events] == ["event: job"] * 3
    told = [msgspec.json.decode(data.removeprefix("data: ")) for _, data in events]
    assert [(one["job_id"], one["state"]) for one in told] == [(JOB_ID, name) for name in ("queued", "running", "done")]


async def test_a_failure_has_a_status_until_something_was_told_and_is_an_event_then(
    client: Client, scheduler: FakeScheduler
) -> None:
    scheduler.jobs.changes = [MissingResource("no such job")]
    answer = await client.http.get(EVENTS, headers=client.headers)
    assert (answer.status_code, answer.json()["error"]) == (404, "missing_resource")
    scheduler.jobs.changes = [job("running"), MissingResource("it was deleted")]
    answer = await client.http.get(EVENTS, headers=client.headers)
    kind, data = answer.text.removesuffix("\n\n").split("\n\n")[-1].split("\n")
    assert (answer.status_code, kind) == (200, "event: error")
    assert msgspec.json.decode(data.removeprefix("data: "))["detail"] == "it was deleted"


async def test_a_job_that_is_refused_leaves_a_line_that_names_what_was_asked(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await client.http.post("/v1/control/jobs", content=b"{}", headers=client.headers)
    (line,) = [record.fields for record in caplog.records if record.name.endswith("audit")]  # type: ignore[attr-defined]
    assert (line["decision"], line["op"]) == ("refused", "create_job")
