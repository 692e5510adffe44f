"""A JSON field that no tested SDK sends: refused, unless the client is an SDK newer than all of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.routing import Route

from services.gateway.wire import bodies, catalog_bodies
from services.gateway.wire.json_body import Body, Glance, decode, unknown_fields_ignored
from tests.contract.gateway.conftest import Client
from tests.contract.gateway.fake_scheduler import FakeScheduler
from tests.contract.gateway.submitted import BASE_MODEL

Json = dict[str, Any]
LATER = {"later": {"x": 1}}
UNKNOWN = "unknown field `later`"
CHECKPOINT = "training_runs/{run_id}/checkpoints/{kind}/{name}"

# What a client's events hold is nobody's business here, and a custom loss is refused as a whole.
TAKES_ANYTHING = {"telemetry", "create_custom_loss"}
WITHOUT_A_BODY = {f"{CHECKPOINT}/publish"}

ORDERED = {
    "create_model": lambda ids: {"session_id": ids["session"], "model_seq_id": 0, "base_model": BASE_MODEL},
    "forward": lambda ids: {"model_id": ids["model"], "seq_id": 1, "forward_input": {"data": [], "loss_fn": "x"}},
    "forward_backward": lambda ids: {"model_id": ids["model"], "seq_id": 1},
    "optim_step": lambda ids: {"model_id": ids["model"], "seq_id": 1},
    "save_weights": lambda ids: {"model_id": ids["model"], "seq_id": 1, "path": "x"},
    "save_weights_for_sampler": lambda ids: {"model_id": ids["model"], "seq_id": 1, "path": "x"},
    "save_weights_external": lambda ids: {"model_id": ids["model"], "seq_id": 1, "path": "x"},
    "load_weights": lambda ids: {"model_id": ids["model"], "seq_id": 1, "path": ids["path"]},
    "asample": lambda ids: {
        "sampling_session_id": ids["sampler"],
        "seq_id": 0,
        "prompt": {"chunks": [{"tokens": [1]}]},
        "sampling_params": {"max_tokens": 1},
    },
}
IMMEDIATE = {
    "client/config": lambda _: {"sdk_version": "0.38.0"},
    "client/dynamic_config": lambda _: {"sdk_version": "0.38.0"},
    "auth/token": lambda _: {},
    "create_session": lambda _: {"tags": [], "sdk_version": "0.38.0"},
    "session_heartbeat": lambda ids: {"session_id": ids["session"]},
    "sessions/{session_id}/finish": lambda _: {"reason": {"type": "success"}, "detail": None},
    "sessions/{session_id}/project": lambda _: {"project_id": "p"},
    "sessions/search": lambda _: {},
    "get_info": lambda ids: {"model_id": ids["model"]},
    "unload_model": lambda ids: {"model_id": ids["model"]},
    "weights_info": lambda ids: {"tinker_path": ids["path"]},
    "create_sampling_session": lambda ids: {
        "session_id": ids["session"],
        "sampling_session_seq_id": 1,
        "base_model": BASE_MODEL,
    },
    "join_sampling_session": lambda ids: {"sampling_session_id": ids["sampler"]},
    "retrieve_future": lambda _: {"request_id": "double.0.0"},
    "retrieve_futures": lambda ids: {"target": {"sampling_session_id": ids["sampler"]}, "timeout": 0},
    "cancel_future": lambda _: {"request_id": "double.0.0"},
    "copy_weights": lambda ids: {"source_path": ids["path"], "destination_project_id": "p"},
    f"{CHECKPOINT}/ttl": lambda _: {"ttl_seconds": None},
}
PUT = {f"{CHECKPOINT}/ttl", "sessions/{session_id}/project"}


@pytest.fixture
def ids(session: str, model: str, sampler: str) -> Json:
    return {"session": session, "model": model, "sampler": sampler, "path": f"tinker://{model}/weights/x"}


async def send(client: Client, ids: Json, route: str, body: Json, version: str = "") -> Any:
    path = route.format(session_id=ids["session"], run_id=ids["model"], kind="weights", name="x")
    headers = {**client.headers, **({"x-stainless-package-version": version} if version else {})}
    method = "PUT" if route in PUT else "POST"
    return await client.http.request(method, f"/api/v1/{path}", content=msgspec.json.encode(body), headers=headers)


def test_every_route_with_a_body_is_in_these_tables_API_08(client: Client) -> None:
    app = client.http._transport.app  # type: ignore[attr-defined]
    routes = {
        route.path.removeprefix("/api/v1/")
        for route in app.router.routes
        if isinstance(route, Route) and {"POST", "PUT"} & (route.methods or set()) and route.path.startswith("/api/v1/")
    }
    assert routes - TAKES_ANYTHING - WITHOUT_A_BODY == ORDERED.keys() | IMMEDIATE.keys()


@pytest.mark.parametrize("version", ["", "0.26.2", "0.38.0"])
@pytest.mark.parametrize("route", ORDERED)
async def test_unknown_field_of_a_command_fails_in_its_turn_API_07_API_08(
    client: Client, ids: Json, route: str, version: str
) -> None:
    answer = await send(client, ids, route, {**ORDERED[route](ids), **LATER}, version)
    assert UNKNOWN in await client.failure(answer)


@pytest.mark.parametrize("version", ["", "0.26.2", "0.38.0"])
@pytest.mark.parametrize("route", IMMEDIATE)
async def test_unknown_field_of_another_request_is_400_API_08(
    client: Client, scheduler: FakeScheduler, ids: Json, route: str, version: str
) -> None:
    answer = await send(client, ids, route, {**IMMEDIATE[route](ids), **LATER}, version)
    assert answer.status_code == 400
    assert UNKNOWN in answer.json()["detail"]
    assert not scheduler.submitted


@pytest.mark.parametrize("version", ["0.38.1", "0.39.0rc1", "1.0.0"])
@pytest.mark.parametrize("route", [*ORDERED, *IMMEDIATE])
async def test_newer_sdk_may_send_fields_of_its_own_API_09(
    client: Client, scheduler: FakeScheduler, ids: Json, route: str, version: str
) -> None:
    body = {**ORDERED, **IMMEDIATE}[route](ids)
    known = await send(client, ids, route, body)
    answer = await send(client, ids, route, {**body, **LATER}, version)
    assert answer.status_code == known.status_code
    assert not any("unknown" in one.command.rejected for one in scheduler.submitted)


NESTED: list[tuple[str, Callable[[Json], Json], str]] = [
    ("a chunk", lambda ids: {"prompt": {"chunks": [{"tokens": [1], "later": 1}]}}, r"$.prompt.chunks[0]"),
    ("a prompt", lambda ids: {"prompt": {"chunks": [], "later": 1}}, "$.prompt"),
]


@pytest.mark.parametrize(("content", "place"), [case[1:] for case in NESTED], ids=[case[0] for case in NESTED])
async def test_the_text_names_the_place_API_08(
    client: Client, ids: Json, content: Callable[[Json], Json], place: str
) -> None:
    body = {**ORDERED["asample"](ids), **content(ids)}
    assert f"{UNKNOWN} - at `{place}`" in await client.failure(await send(client, ids, "asample", body))
    taken = await send(client, ids, "asample", {**body, "seq_id": 1}, "9.9.9")
    result = (await client.result(taken.json()["request_id"])).text
    assert "unknown" not in result


@pytest.mark.parametrize("version", ["", "9.9.9"])
async def test_unknown_parameters_are_refused_whoever_sends_them_API_08(
    client: Client, ids: Json, version: str
) -> None:
    body = {**ORDERED["optim_step"](ids), "adam_params": {"later": 1}}
    assert f"{UNKNOWN} - at `$.adam_params`" in await client.failure(
        await send(client, ids, "optim_step", body, version)
    )


async def test_wrong_type_of_a_request_is_refused_API_08(client: Client, ids: Json) -> None:
    body = {**ORDERED["optim_step"](ids), "type": "save_weights"}
    assert "$.type" in await client.failure(await send(client, ids, "optim_step", body))


async def test_newer_sdk_is_told_what_was_ignored_API_09(client: Client, ids: Json) -> None:
    for body, version in (({"sdk_version": "0.39.0"}, ""), ({}, "0.39.0")):
        answer = (await send(client, ids, "create_session", {**body, **LATER, "new": 1}, version)).json()
        assert answer["warning_message"].endswith("fields this mesh does not know are ignored: 'later', 'new'")


# SDK request model -> our struct, where its name is another.
OURS: dict[str, type[msgspec.Struct]] = {
    "ClientConfigRequest": bodies.SdkVersion,
    "CreateSessionRequest": bodies.CreateSession,
    "SessionHeartbeatRequest": bodies.SessionId,
    "CreateModelRequest": bodies.CreateModel,
    "GetInfoRequest": bodies.ModelOnly,
    "UnloadModelRequest": bodies.ModelOnly,
    "OptimStepRequest": bodies.OptimStep,
    "SaveWeightsRequest": bodies.SaveWeights,
    "SaveWeightsForSamplerRequest": bodies.SaveForSampler,
    "SaveWeightsExternalRequest": bodies.SaveExternal,
    "LoadWeightsRequest": bodies.LoadWeights,
    "CreateSamplingSessionRequest": bodies.CreateSamplingSession,
    "JoinSamplingSessionRequest": bodies.SamplingSessionId,
    "SampleRequest": bodies.Sample,
    "FutureRetrieveRequest": bodies.RequestOnly,
    "FuturesRetrieveRequest": bodies.RetrieveFutures,
    "SamplingSessionFuturesTarget": bodies.FuturesTarget,
    "CopyWeightsRequest": catalog_bodies.CopyWeights,
    "SessionSearchRequest": catalog_bodies.SearchSessions,
    "SessionSearchCursor": catalog_bodies.SearchCursor,
    "UserSearchOwner": catalog_bodies.SearchOwner,
    "ClientFinishedSessionStatusQuery": catalog_bodies.StatusQuery,
    "ClientSessionFinished": bodies.FinishSession,
    "EncodedTextChunk": bodies.Chunk,
    "ImageChunk": bodies.Chunk,
    "ImageAssetPointerChunk": bodies.Chunk,
    "DmelChunk": bodies.Chunk,
    "ModelInput": bodies.ModelInput,
    "LoraConfig": bodies.LoraConfig,
    "SamplingParams": bodies.SamplingParams,
    "AdamParams": bodies.AdamParams,
    "DimuonOptimizerConfig": bodies.OptimizerConfig,
}
# Renamed on the wire, or a sign of an answer.
NOT_SENT = {"OptimStepRequest.optim_params", "ClientSessionFinished.type"}


def test_every_field_of_the_sdks_requests_is_known_API_08() -> None:
    surface = json.loads((Path(__file__).parents[1] / "sdk" / "surface.json").read_text())
    sent = {name.removeprefix("message ") for name in surface if name.startswith("message ")}
    seen = set()
    for name in sent - NOT_SENT:
        model, field = name.split(".")
        if model in OURS:
            seen.add(model)
            assert field in OURS[model].__struct_encode_fields__, name
    missing = {name.split(".")[0] for name in sent if name.split(".")[0].endswith("Request")} - OURS.keys()
    assert missing == {
        "CreateCustomLossRequest",
        "GetBillingUsageRequest",
        "GetCurrentCheckpointStorageUsageRequest",
        "TelemetrySendRequest",
    }
    assert seen == OURS.keys()


def test_a_glance_leaves_the_rest_to_the_whole_API_07() -> None:
    assert not issubclass(bodies.ModelEnvelope, Body)
    assert issubclass(bodies.OptimStep, Glance)
    assert decode(b'{"model_id": "m", "seq_id": 1, "later": 1}', bodies.ModelEnvelope).seq_id == 1
    with unknown_fields_ignored(True):
        assert isinstance(decode(b'{"model_id": "m", "seq_id": 1, "later": 1}', bodies.OptimStep), bodies.OptimStep)
