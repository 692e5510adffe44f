"""retrieve_futures and join_sampling_session: one poll for all samples of a client."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import httpx
import msgspec
import pytest
from tinkermesh.v1 import types_pb2 as types

from services.gateway.settings import Settings
from tests.contract.gateway.conftest import AT_ONCE, KEY, OTHER_KEY, Client, running
from tests.contract.gateway.fake_scheduler import FakeScheduler
from tests.doubles.eventually import eventually

CLONE = 10**9


async def submit(client: Client, sampler: str, seq_id: int = 0) -> str:
    body = {"prompt": {"chunks": [{"tokens": [1, 2, 3]}]}, "sampling_session_id": sampler, "seq_id": seq_id}
    return str((await client.post("asample", {**body, "sampling_params": {"max_tokens": 2}})).json()["request_id"])


async def ask(client: Client, sampler: str, cursor: int = 0, *, clone: int = 0, **fields: Any) -> httpx.Response:
    target = {"type": "sampling_session", "sampling_session_id": sampler, "cloned_sampler_id": clone}
    return await client.post("retrieve_futures", {"target": target, "prev_cursor": cursor, **fields})


async def test_what_is_settled_is_answered_at_once_with_its_size(
    client: Client, scheduler: FakeScheduler, sampler: str
) -> None:
    scheduler.held = True
    ids = [await submit(client, sampler, seq) for seq in range(2)]
    scheduler.release(ids[0])
    failure = types.Failure(category=types.FAILURE_CATEGORY_USER, message="no")
    scheduler.release(ids[1], types.Result(failure=failure))
    answer = (await ask(client, sampler)).json()
    size = scheduler.requests[ids[0]].result.ByteSize()  # type: ignore[union-attr]
    assert answer == {
        "completions": [
            {"state": "finished", "request_id": ids[0], "response_payload_uncompressed_size": size},
            {"state": "failed", "request_id": ids[1]},
        ],
        "cursor": 20,
    }
    assert (await ask(client, sampler, 10)).json()["completions"] == [{"state": "failed", "request_id": ids[1]}]


async def test_a_poll_is_held_until_the_first_settlement_FUT_07(
    patient: Client, scheduler: FakeScheduler, sampler: str
) -> None:
    scheduler.held = True
    request_id = await submit(patient, sampler)
    polls = [asyncio.create_task(ask(patient, sampler)) for _ in range(3)]
    await eventually(lambda: scheduler.streams.open_polls > 0)
    assert scheduler.streams.open_polls == 1, "polls of one cursor share a wait"
    scheduler.release()
    for answer in await asyncio.wait_for(asyncio.gather(*polls), AT_ONCE):
        assert [one["request_id"] for one in answer.json()["completions"]] == [request_id]
    await eventually(lambda: scheduler.streams.open_polls == 0)


async def test_a_poll_without_news_ends_empty_with_its_own_cursor(
    client: Client, patient: Client, scheduler: FakeScheduler, sampler: str
) -> None:
    scheduler.held = True
    await submit(client, sampler)
    began = time.monotonic()
    short = await asyncio.wait_for(ask(patient, sampler, 7, timeout=0.2), AT_ONCE)
    assert short.json() == {"completions": [], "cursor": 7}
    assert time.monotonic() - began >= 0.2
    await eventually(lambda: scheduler.streams.open_polls == 0)
    for asked in ({}, {"timeout": 3600.0}):  # the long poll's own end, however long a client would wait
        answer = await asyncio.wait_for(ask(client, sampler, **asked), AT_ONCE)
        assert answer.json() == {"completions": [], "cursor": 0}


async def test_timeout_zero_only_reports_what_was_retrieved(
    patient: Client, scheduler: FakeScheduler, sampler: str
) -> None:
    scheduler.held = True
    await submit(patient, sampler)
    asked = ask(patient, sampler, 3, timeout=0.0, retrieved_request_ids=["a.b.0", "x"])
    answer = await asyncio.wait_for(asked, AT_ONCE)
    assert answer.json() == {"completions": [], "cursor": 3}
    assert scheduler.streams.settled.retrieved == ["a.b.0", "x"]
    assert scheduler.streams.open_polls == 0


async def test_retrieved_ids_are_reported_once_per_poll(client: Client, scheduler: FakeScheduler, sampler: str) -> None:
    scheduler.held = True
    await submit(client, sampler)
    poll = asyncio.create_task(ask(client, sampler, retrieved_request_ids=["a"]))
    await eventually(lambda: scheduler.streams.open_polls > 0)
    scheduler.release()
    await poll
    assert scheduler.streams.settled.retrieved == ["a"]


async def test_each_clone_has_its_own_list(client: Client, sampler: str) -> None:
    mine, yours = await submit(client, sampler, 1), await submit(client, sampler, 9 * CLONE)
    for clone, request_id in ((0, mine), (9, yours)):
        completions = (await ask(client, sampler, clone=clone)).json()["completions"]
        assert [one["request_id"] for one in completions] == [request_id]


async def test_an_answer_holds_a_bounded_number_of_completions(client: Client, sampler: str) -> None:
    ids = [await submit(client, sampler, seq) for seq in range(20)]
    first = (await ask(client, sampler)).json()
    rest = (await ask(client, sampler, first["cursor"])).json()
    assert len(first["completions"]) == 16
    assert [one["request_id"] for one in first["completions"] + rest["completions"]] == ids


async def test_a_lost_stream_is_opened_again_with_the_wait_in_it(
    client: Client, scheduler: FakeScheduler, sampler: str
) -> None:
    scheduler.held = True
    request_id = await submit(client, sampler)
    poll = asyncio.create_task(ask(client, sampler))
    await eventually(lambda: scheduler.streams.open_polls > 0)
    port = scheduler.port
    await scheduler.stop()
    await scheduler.start(f"127.0.0.1:{port}")
    await eventually(lambda: scheduler.streams.open_polls > 0)
    scheduler.release()
    assert [one["request_id"] for one in (await poll).json()["completions"]] == [request_id]


async def test_foreign_and_unknown_targets_are_refused_SEC_05(
    client: Client, other: Client, scheduler: FakeScheduler, sampler: str
) -> None:
    unknown = sampler.replace(":sample:0:", ":sample:9:")
    for asked, session, status in ((other, sampler, 403), (client, unknown, 400), (client, "x", 400)):
        assert (await ask(asked, session, timeout=0)).status_code == status
        joined = await asked.post("join_sampling_session", {"sampling_session_id": session})
        assert joined.status_code == status
    assert not scheduler.joined


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"prev_cursor": -1}, r"prev_cursor"),
        ({"prev_cursor": 2**60}, r"prev_cursor"),
        ({"prev_cursor": True}, r"prev_cursor"),
        ({"timeout": -1.0}, r"timeout"),
        ({"timeout": "soon"}, r"timeout"),
        ({"retrieved_request_ids": [3]}, r"retrieved_request_ids"),
        ({"retrieved_request_ids": ["x" * 2000]}, r"retrieved_request_ids"),
        ({"retrieved_request_ids": ["x"] * 70_000}, r"retrieved_request_ids"),
        ({"target": {"type": "model"}}, r"target"),
        ({"target": None}, r"target"),
    ],
)
async def test_bad_polls_are_400_naming_the_field_API_06(
    client: Client, sampler: str, change: dict[str, Any], text: str
) -> None:
    body = {"target": {"sampling_session_id": sampler, "cloned_sampler_id": 0}, "timeout": 0, **change}
    answer = await client.post("retrieve_futures", body)
    assert answer.status_code == 400
    assert re.search(text, answer.json()["detail"]), answer.text


async def test_open_polls_of_a_tenant_are_bounded_FUT_07_SEC_10(
    settings: Settings, scheduler: FakeScheduler, sampler: str
) -> None:
    capped = msgspec.structs.replace(settings, max_polls_per_tenant=2, long_poll_seconds=60.0)
    scheduler.held = True
    async with running(capped) as (http, gateway):
        one, two = Client(http, gateway, KEY), Client(http, gateway, OTHER_KEY)
        await submit(one, sampler)
        polls = [asyncio.create_task(ask(one, sampler, cursor)) for cursor in (0, 1)]
        await eventually(lambda: scheduler.streams.open_polls == 2)
        refused = await ask(one, sampler)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert (await ask(two, sampler)).status_code == 403, "another tenant's polls are its own"
        scheduler.release()
        assert {answer.status_code for answer in await asyncio.wait_for(asyncio.gather(*polls), AT_ONCE)} == {200}
        assert (await ask(one, sampler)).status_code == 200


async def test_joining_hands_on_the_idempotency_key(client: Client, scheduler: FakeScheduler, sampler: str) -> None:
    body = {"sampling_session_id": sampler, "type": "join_sampling_session"}
    answer = await client.post("join_sampling_session", body, x_idempotency_key="stainless-python-retry-1")
    assert answer.json() == {"type": "join_sampling_session", "client_counter": 1_000_000_001}
    assert scheduler.joined == ["stainless-python-retry-1"]
