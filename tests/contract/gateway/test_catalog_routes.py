"""The catalog's routes: what they ask of the scheduler, what they answer, what they refuse."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from services.gateway.routes import checkpoints
from tests.contract.gateway.conftest import Client
from tests.contract.gateway.fake_catalog import CREATED_MS
from tests.contract.gateway.fake_scheduler import FakeScheduler

CK = "checkpoints/weights/ck0"
TIME = "2023-11-14T22:13:20+00:00"


async def send(client: Client, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
    everything = {**client.headers, **headers}
    return await client.http.request(method, f"/api/v1/{path}", json=body, headers=everything)


async def test_training_runs_come_in_pages_with_their_total(
    client: Client, scheduler: FakeScheduler, model: str
) -> None:
    answer = (await send(client, "GET", "training_runs?limit=7&offset=2&access_scope=accessible&project_id=p")).json()
    assert [run["training_run_id"] for run in answer["training_runs"]] == [model]
    assert answer["cursor"] == {"offset": 2, "limit": 7, "total_count": 3}
    asked = scheduler.catalog.last
    assert (asked.offset, asked.limit, asked.project_id) == (2, 7, "p")


async def test_a_list_of_a_runs_checkpoints_is_whole_whatever_its_length(
    client: Client, scheduler: FakeScheduler, model: str
) -> None:
    scheduler.catalog.total = 2_345
    answer = (await send(client, "GET", f"training_runs/{model}/checkpoints")).json()
    assert len({one["checkpoint_id"] for one in answer["checkpoints"]}) == 2_345
    assert answer["cursor"]["total_count"] == 2_345
    assert [one.limit for one in scheduler.catalog.asked] == [1000, 1000, 1000]
    page = (await send(client, "GET", f"training_runs/{model}/checkpoints?limit=2&offset=4")).json()
    assert [one["checkpoint_id"] for one in page["checkpoints"]] == ["weights/ck4", "weights/ck5"]


async def test_a_list_of_a_runs_checkpoints_ends_at_a_size_and_shows_none_twice(
    client: Client, scheduler: FakeScheduler, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"training_runs/{model}/checkpoints"
    with monkeypatch.context() as small:
        small.setattr(checkpoints, "CHECKPOINTS_OF_A_RUN", 2_500)
        scheduler.catalog.total = 7_000
        answer = (await send(client, "GET", place)).json()
        assert (len(answer["checkpoints"]), answer["cursor"]["total_count"]) == (3_000, 7_000)
        small.setattr(checkpoints, "BYTES_OF_A_RUN", 1)
        assert len((await send(client, "GET", place)).json()["checkpoints"]) == 1_000
    scheduler.catalog.total, scheduler.catalog.moved = 1_500, 3  # saved between the pages
    shown = [one["checkpoint_id"] for one in (await send(client, "GET", place)).json()["checkpoints"]]
    assert len(shown) == len(set(shown))


async def test_a_checkpoint_is_rendered_as_the_sdk_wants_it(client: Client, model: str) -> None:
    answer = (await send(client, "GET", "checkpoints?limit=1")).json()
    assert answer["checkpoints"] == [
        {
            "checkpoint_id": "weights/ck0",
            "checkpoint_type": "training",
            "time": TIME,
            "tinker_path": f"tinker://{model}/weights/ck0",
            "size_bytes": 0,
            "public": True,
            "user_metadata": None,
            "expires_at": None,
        }
    ]


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=-1", "limit=1001", "limit=ten", "limit=1e3", "limit=", "limit=٣", "limit=" + "9" * 400]
    + ["offset=-1", "offset=x", "offset=1.5", f"offset={2**60}", "offset="],
)
async def test_windows_out_of_bounds_are_400_naming_the_parameter_API_06(client: Client, query: str) -> None:
    for route in ("training_runs", "checkpoints", "sessions"):
        answer = await send(client, "GET", f"{route}?{query}")
        assert answer.status_code == 400, (route, answer.text)
        assert answer.json()["detail"].startswith(query.split("=")[0])


async def test_unknown_scopes_are_400(client: Client, model: str, session: str) -> None:
    for route in ("training_runs", f"training_runs/{model}", "sessions", f"sessions/{session}"):
        assert (await send(client, "GET", f"{route}?access_scope=all")).status_code == 400


async def test_publish_unpublish_and_ttl_name_the_path(client: Client, scheduler: FakeScheduler, model: str) -> None:
    path = f"tinker://{model}/weights/ck0"
    for method, public in (("POST", True), ("DELETE", False)):
        assert (await send(client, method, f"training_runs/{model}/{CK}/publish")).status_code == 204
        assert (scheduler.catalog.last.path, scheduler.catalog.last.public) == (path, public)
    assert (await send(client, "PUT", f"training_runs/{model}/{CK}/ttl", {"ttl_seconds": 3600})).status_code == 204
    assert (scheduler.catalog.last.path, scheduler.catalog.last.ttl_seconds) == (path, 3600)
    assert (await send(client, "PUT", f"training_runs/{model}/{CK}/ttl", {"ttl_seconds": None})).status_code == 204
    assert not scheduler.catalog.last.HasField("ttl_seconds")


@pytest.mark.parametrize("ttl", [0, -5, 10**9, "3600", True, 1.5, "missing"])
async def test_a_ttl_out_of_bounds_or_of_another_type_is_400_API_06(
    client: Client, scheduler: FakeScheduler, model: str, ttl: Any
) -> None:
    body = {} if ttl == "missing" else {"ttl_seconds": ttl}
    answer = await send(client, "PUT", f"training_runs/{model}/{CK}/ttl", body)
    assert answer.status_code == 400 and "ttl_seconds" in answer.json()["detail"]
    assert not scheduler.catalog.asked


@pytest.mark.parametrize("run", ["nonsense", "...", "%2e%2e%2f", "00000000-0000-0000-0000-000000000000:train:x"])
async def test_ids_that_cannot_be_are_404_and_reach_nobody_SEC_06(
    client: Client, scheduler: FakeScheduler, run: str
) -> None:
    for method, path in (
        ("GET", f"training_runs/{run}"),
        ("GET", f"training_runs/{run}/checkpoints"),
        ("DELETE", f"training_runs/{run}/{CK}"),
        ("POST", f"training_runs/{run}/{CK}/publish"),
        ("PUT", f"training_runs/{run}/{CK}/ttl"),
        ("GET", f"training_runs/{run}/{CK}/archive"),
        ("GET", f"training_runs/{run}/{CK}/external_weights_urls"),
        ("GET", f"sessions/{run}"),
        ("PUT", f"sessions/{run}/project"),
    ):
        answer = await send(client, method, path, {"ttl_seconds": 5, "project_id": "p"} if method == "PUT" else None)
        assert answer.status_code == 404, (method, path, answer.text)
    assert not scheduler.catalog.asked


@pytest.mark.parametrize(
    ("checkpoint", "status"),
    [
        ("weights/..", 404),  # another path altogether
        ("weights/.hidden", 400),
        ("optimizer/x", 400),
        ("weights/a%5Cb", 400),
        ("weights/%00", 400),
    ],
)
async def test_checkpoint_ids_outside_the_grammar_are_refused_SEC_06(
    client: Client, scheduler: FakeScheduler, model: str, checkpoint: str, status: int
) -> None:
    answer = await send(client, "POST", f"training_runs/{model}/checkpoints/{checkpoint}/publish")
    assert answer.status_code == status, answer.text
    assert not scheduler.catalog.asked


async def test_another_tenant_is_403_on_every_route_SEC_05(other: Client, model: str, session: str) -> None:
    for method, path, body in (
        ("GET", f"training_runs/{model}", None),
        ("GET", f"training_runs/{model}/checkpoints", None),
        ("DELETE", f"training_runs/{model}/{CK}", None),
        ("POST", f"training_runs/{model}/{CK}/publish", None),
        ("DELETE", f"training_runs/{model}/{CK}/publish", None),
        ("PUT", f"training_runs/{model}/{CK}/ttl", {"ttl_seconds": None}),
        ("GET", f"training_runs/{model}/{CK}/archive", None),
        ("GET", f"training_runs/{model}/{CK}/external_weights_urls", None),
        ("GET", f"sessions/{session}", None),
        ("PUT", f"sessions/{session}/project", {"project_id": "mine"}),
        ("POST", "save_weights_external", {"model_id": model, "seq_id": 1, "path": "x"}),
    ):
        assert (await send(other, method, path, body)).status_code == 403, (method, path)


async def test_no_key_is_401_on_every_route(client: Client, model: str, session: str) -> None:
    for path in ("training_runs", f"training_runs/{model}/checkpoints", "checkpoints", "sessions", "audit"):
        assert (await client.http.get(f"/api/v1/{path}")).status_code == 401


# ---- sessions ------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [{"project_id": ""}, {"project_id": "p" * 1025}, {"project_id": None}, {}])
async def test_a_session_is_assigned_to_a_project_that_has_a_name(
    client: Client, scheduler: FakeScheduler, session: str, body: dict[str, Any]
) -> None:
    answer = await send(client, "PUT", f"sessions/{session}/project", body)
    assert answer.status_code == 400
    assert "project_id" in answer.json()["detail"]
    assert not scheduler.catalog.asked


async def test_a_session_is_described_with_its_metadata_and_name(client: Client, session: str) -> None:
    answer = (await send(client, "GET", f"sessions/{session}")).json()
    assert (answer["user_metadata"], answer["display_name"]) == ({"a": "b"}, "name")
    assert (await send(client, "GET", "sessions")).json()["sessions"] == [session]


async def test_a_search_passes_its_filters_on_and_its_cursor_back(
    client: Client, scheduler: FakeScheduler, session: str
) -> None:
    body = {
        "display_name": "night",
        "user_metadata": {"k": "v"},
        "project_ids": ["p"],
        "statuses": [{"type": "client_finished", "reasons": ["success"]}, {"type": "active"}],
        "limit": 3,
    }
    answer = (await send(client, "POST", "sessions/search", body)).json()
    asked = scheduler.catalog.last
    assert (asked.display_name, dict(asked.user_metadata), list(asked.project_ids)) == ("night", {"k": "v"}, ["p"])
    assert [(s.status, list(s.finish_reasons)) for s in asked.statuses] == [("finished", ["success"]), ("active", [])]
    assert answer["sessions"][0]["status"] == {
        "type": "client_finished",
        "reason": {"type": "success"},
        "detail": None,
    }
    await send(client, "POST", "sessions/search", {"cursor": answer["next_cursor"]})
    assert (scheduler.catalog.last.before_unix_ms, scheduler.catalog.last.before_session_id) == (
        CREATED_MS + 1,
        session,
    )


async def test_a_search_for_other_owners_finds_nothing(client: Client, scheduler: FakeScheduler, session: str) -> None:
    answer = (await send(client, "POST", "sessions/search", {"owner": {"type": "user", "owner_urns": ["x"]}})).json()
    assert answer == {"sessions": [], "next_cursor": None}
    assert not scheduler.catalog.asked


@pytest.mark.parametrize(
    "body",
    [
        {"limit": 0},
        {"limit": 201},
        {"limit": "5"},
        {"statuses": []},
        {"statuses": [{"type": "sleeping"}]},
        {"statuses": [{"type": "client_finished", "reasons": ["bored"]}]},
        {"display_name": ""},
        {"user_metadata": {"a": 1}},
        {"cursor": {"last_created_at": "yesterday", "last_session_id": "x"}},
        {"cursor": {"last_created_at": "2026-01-01T00:00:00", "last_session_id": "x"}},
        {"cursor": {"last_created_at": TIME, "last_session_id": "x"}},
        {"owner": {"type": "everyone"}},
        [],
    ],
)
async def test_a_malformed_search_is_400_API_06(client: Client, scheduler: FakeScheduler, body: Any) -> None:
    assert (await send(client, "POST", "sessions/search", body)).status_code == 400
    assert not scheduler.catalog.asked


# ---- copies --------------------------------------------------------------------------------


async def test_a_copy_carries_its_key_and_only_the_tokens_digest_SEC_04(
    client: Client, scheduler: FakeScheduler, model: str
) -> None:
    body = {"source_path": f"tinker://{model}/weights/ck0", "destination_project_id": "p", "ttl_seconds": 3600}
    headers = {"x-idempotency-key": "key-1", "x-tinker-weights-access-token": "tml-SECRET-token"}
    assert (await send(client, "POST", "copy_weights", body, **headers)).json() == {"tinker_path": body["source_path"]}
    asked = scheduler.catalog.last
    assert (asked.idempotency_key, asked.project_id, asked.ttl_seconds) == ("key-1", "p", 3600)
    assert len(asked.weights_access_digest) == 64 and "SECRET" not in str(asked)


@pytest.mark.parametrize(
    "change",
    [
        {"source_path": "tinker://x/weights/y"},
        {"source_path": "/etc/passwd"},
        {"destination_project_id": None},
        {"destination_project_id": ""},
        {"session_id": "not-a-session", "model_seq_id": 0, "destination_project_id": None},
        {"session_id": "{session}", "model_seq_id": 0},
        {"session_id": "{session}", "model_seq_id": -1, "destination_project_id": None},
        {"session_id": "{session}", "destination_project_id": None},
        {"ttl_seconds": 0},
        {"ttl_seconds": 10**10},
    ],
)
async def test_a_malformed_copy_is_400_API_06(
    client: Client, scheduler: FakeScheduler, model: str, session: str, change: dict[str, Any]
) -> None:
    filled = {name: session if value == "{session}" else value for name, value in change.items()}
    body = {"source_path": f"tinker://{model}/weights/ck0", "destination_project_id": "p"} | filled
    assert (await send(client, "POST", "copy_weights", body)).status_code == 400
    assert not scheduler.catalog.asked


# ---- what is not here -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "audit?event_type=x&day=2026-01-01"),
        ("GET", "billing/usage/events?starting_on=2026-01-01"),
        ("GET", "billing/usage/checkpoints/current"),
        ("GET", "sessions/00000000-0000-0000-0000-000000000000/trace_export"),
        ("POST", "create_custom_loss"),
    ],
)
async def test_what_only_the_hosted_service_has_says_why_not(client: Client, method: str, path: str) -> None:
    answer = await send(client, method, path, {} if method == "POST" else None)
    assert answer.status_code == 404
    assert "is not supported by this mesh: " in answer.json()["detail"]
