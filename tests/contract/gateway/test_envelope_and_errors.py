"""What is refused at once: unreadable envelopes, foreign and unknown ids, missing keys."""

from __future__ import annotations

from typing import Any

import pytest

from services.common.errors import Busy, ContractViolation, KeyConflict, ModelClosed, Unavailable
from tests.contract.gateway import wire_forms as forms
from tests.contract.gateway.conftest import Client, Tenants
from tests.contract.gateway.fake_scheduler import FakeScheduler
from tests.contract.gateway.submitted import BASE_MODEL

POSTS = [
    "client/config",
    "client/dynamic_config",
    "telemetry",
    "create_session",
    "session_heartbeat",
    "create_model",
    "get_info",
    "unload_model",
    "weights_info",
    "forward_backward",
    "forward",
    "optim_step",
    "save_weights",
    "load_weights",
    "save_weights_for_sampler",
    "create_sampling_session",
    "asample",
    "retrieve_future",
    "cancel_future",
    "sessions/x/finish",
]
NEED_JSON = [path for path in POSTS if path not in ("client/config", "client/dynamic_config", "telemetry")]


@pytest.mark.parametrize(
    "headers", [{}, {"x-api-key": "tml-nobody"}, {"x-api-key": "  "}, {"authorization": "Basic x"}]
)
async def test_missing_or_unknown_key_is_401_with_a_body_SEC_01(
    client: Client, scheduler: FakeScheduler, headers: dict[str, str]
) -> None:
    for path in POSTS:
        response = await client.http.post(f"/api/v1/{path}", content=b"{}", headers=headers)
        assert response.status_code == 401, path
        assert response.json()["error"] == "unauthenticated"
    assert set(scheduler.calls) <= {"Watch"}


async def test_bearer_and_api_key_are_the_same_tenant_SEC_01(client: Client, model: str) -> None:
    key = client.headers["x-api-key"]
    bearer = Client(client.http, client.gateway, "")
    bearer.headers = {"authorization": f"Bearer {key}"}
    assert (await bearer.post("get_info", {"model_id": model})).status_code == 200


HUGE_NUMBER = b'{"session_id": ' + b"1" * 5000 + b', "tags": ' + b"1" * 5000 + b"}"
MALFORMED = [b"", b"{", b"[]", b"null", b"\xff\xfe", b'"x"', b"{}x", b"[" * 100_000, HUGE_NUMBER]


@pytest.mark.parametrize("path", NEED_JSON)
async def test_malformed_json_is_400_with_a_body_API_06(client: Client, path: str) -> None:
    for body in MALFORMED:
        response = await client.post(path, body)
        assert response.status_code == 400, (body[:40], response.text)
        assert response.json()["category"] == "user"
        assert response.json()["detail"]


@pytest.mark.parametrize("body", [b"\xff", b"\x0a\xff\xff", b"\x1a\x05abc"])
async def test_malformed_protobuf_is_400_API_06(client: Client, body: bytes) -> None:
    response = await client.protobuf(body)
    assert response.status_code == 400
    assert "protobuf" in response.json()["detail"]


@pytest.mark.parametrize("path", ["session_heartbeat", "get_info", "retrieve_future", "asample", "create_model"])
async def test_missing_field_is_named_API_06(client: Client, path: str) -> None:
    response = await client.post(path, {})
    assert response.status_code == 400
    assert "missing required field" in response.json()["detail"]


# ---- ownership -----------------------------------------------------------------------------


async def test_foreign_ids_are_403_on_every_path_SEC_05(
    client: Client, other: Client, scheduler: FakeScheduler, session: str, model: str, sampler: str
) -> None:
    request_id = (await client.post("optim_step", {"model_id": model, "seq_id": 1})).json()["request_id"]
    accepted = len(scheduler.submitted)
    prompt = {"chunks": [{"tokens": [1]}]}
    path = f"tinker://{model}/weights/x"
    posts = {
        "get_info": {"model_id": model},
        "unload_model": {"model_id": model},
        "optim_step": {"model_id": model, "seq_id": 2},
        "save_weights": {"model_id": model, "seq_id": 2, "path": "x"},
        "save_weights_for_sampler": {"model_id": model, "seq_id": 2, "path": "x"},
        "load_weights": {"model_id": model, "seq_id": 2, "path": path, "optimizer": True},
        "forward_backward": forms.request(model, 2, [forms.supervised([1])]),
        "create_model": {"session_id": session, "model_seq_id": 9, "base_model": BASE_MODEL},
        "create_sampling_session": {"session_id": session, "sampling_session_seq_id": 9, "base_model": BASE_MODEL},
        "asample": {"sampling_session_id": sampler, "seq_id": 2, "prompt": prompt},
        "session_heartbeat": {"session_id": session},
        f"sessions/{session}/finish": {"reason": {"type": "success"}, "detail": None},
        "retrieve_future": {"request_id": request_id},
    }
    for route, body in posts.items():
        response = await other.post(route, body)
        assert response.status_code == 403, (route, response.text)
        assert response.json()["detail"]
    for method, route in (
        ("GET", f"samplers/{sampler}"),
        ("GET", f"training_runs/{model}"),
        ("DELETE", f"training_runs/{model}/checkpoints/weights/x"),
    ):
        assert (await other.request(method, route)).status_code == 403, route
    assert len(scheduler.submitted) == accepted
    assert (await client.result(request_id)).status_code == 200


async def test_broken_content_for_a_foreign_model_is_403_not_a_rejection(
    other: Client, scheduler: FakeScheduler, model: str
) -> None:
    assert (await other.post("forward_backward", forms.request(model, 1, []))).status_code == 403
    assert not scheduler.submitted


async def test_unknown_ids_are_400_API_05(client: Client, session: str) -> None:
    unknown = f"{session}:train:77"
    for route, body in (
        ("get_info", {"model_id": unknown}),
        ("optim_step", {"model_id": unknown, "seq_id": 1}),
        ("optim_step", {"model_id": "nonsense", "seq_id": 1}),
        ("forward_backward", forms.request(unknown, 1, [forms.supervised([1])])),
        ("forward_backward", forms.request("../../etc/passwd", 1, [])),
        ("asample", {"sampling_session_id": "nonsense", "seq_id": 1, "prompt": {"chunks": []}}),
        ("asample", {"sampling_session_id": f"{session}:sample:9:double", "seq_id": 1, "prompt": {"chunks": []}}),
        ("create_model", {"session_id": "nonsense", "model_seq_id": 1, "base_model": BASE_MODEL}),
    ):
        response = await client.post(route, body)
        assert response.status_code == 400, (route, response.text)
        assert response.json()["category"] == "user"


async def test_unknown_future_is_410_API_05(client: Client) -> None:
    for request_id in ("nonsense", f"double.{'0' * 32}.0", ""):
        response = await client.post("retrieve_future", {"request_id": request_id})
        assert response.status_code == 410, request_id


async def test_heartbeat_of_a_session_that_is_gone_is_410_LEASE_04(client: Client) -> None:
    gone = "00000000-0000-4000-8000-000000000000"
    assert (await client.post("session_heartbeat", {"session_id": gone})).status_code == 410
    assert (await client.post("session_heartbeat", {"session_id": "nonsense"})).status_code == 410


async def test_heartbeat_is_503_while_the_scheduler_is_away_LEASE_04(
    hasty: Client, scheduler: FakeScheduler, session: str
) -> None:
    scheduler.away(100)
    response = await hasty.post("session_heartbeat", {"session_id": session})
    assert response.status_code == 503
    assert response.json()["category"] == "server"


# ---- what the scheduler says ---------------------------------------------------------------


async def test_a_short_absence_of_the_scheduler_is_invisible_FAIL_14(
    client: Client, scheduler: FakeScheduler, model: str
) -> None:
    scheduler.away(3)
    response = await client.post("optim_step", {"model_id": model, "seq_id": 1})
    assert response.status_code == 200
    assert scheduler.calls.count("Submit") == 4


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (KeyConflict("used"), 400),
        (ModelClosed("closed: lease expired"), 400),
        (Busy("slow down"), 429),
        (ContractViolation("broken"), 500),
    ],
    ids=["conflict", "closed", "busy", "violation"],
)
async def test_scheduler_errors_keep_their_type_API_05(
    client: Client, scheduler: FakeScheduler, model: str, error: Any, status: int
) -> None:
    scheduler.failures.append(error)
    response = await client.post("optim_step", {"model_id": model, "seq_id": 1})
    assert (response.status_code, response.json()["detail"]) == (status, error.message)


async def test_no_pool_yet_is_503_and_a_later_create_succeeds(
    client: Client, scheduler: FakeScheduler, session: str
) -> None:
    pools, scheduler.pools = scheduler.pools, []
    body = {"session_id": session, "model_seq_id": 0, "base_model": BASE_MODEL}
    assert (await client.post("create_model", body)).status_code == 503
    scheduler.pools = pools
    assert (await client.post("create_model", body)).status_code == 200


async def test_create_after_a_long_absence_is_503(hasty: Client, scheduler: FakeScheduler) -> None:
    scheduler.failures.extend(Unavailable("away") for _ in range(100))
    response = await hasty.post("create_session", {"sdk_version": "0.38.0"})
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"


# ---- what is not there ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "optim_step"),
        ("POST", "training_runs"),
        ("GET", "sessions/search/more"),
        ("GET", "downloads"),
    ],
)
async def test_anything_else_is_a_clear_404(client: Client, method: str, path: str) -> None:
    response = await client.request(method, path)
    assert response.status_code == 404
    assert response.json()["detail"] == f"{method} /api/v1/{path} is not supported by this mesh"


async def test_an_unreadable_key_file_is_the_meshs_fault(client: Client, tenants: Tenants) -> None:
    tenants.key_file.write_text("{ broken")
    response = await client.post("client/config", {})
    assert (response.status_code, response.json()["category"]) == (503, "server")


async def test_a_declared_length_far_beyond_the_limit_is_refused_before_the_body_VAL_14(client: Client) -> None:
    response = await client.post("get_info", b"{}", content_length="999999999999")
    assert (response.status_code, response.json()["error"]) == (413, "too_large")


async def test_media_types_are_read_in_any_case_API_03(client: Client, model: str) -> None:
    body = forms.to_protobuf(forms.request(model, 1, [forms.supervised([5, 6])]))
    posted = await client.post("forward_backward", body, content_type="Application/X-Protobuf; v=1")
    assert posted.status_code == 200, posted.text
    polled = {"request_id": posted.json()["request_id"]}
    answer = await client.post("retrieve_future", polled, accept="APPLICATION/X-PROTOBUF")
    assert answer.headers["content-type"] == "application/x-protobuf"
