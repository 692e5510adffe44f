"""A foreign id on every route, by introspection: refused, nothing told, no backend called (SEC-05)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from redis import Redis
from starlette.routing import Route

from services.gateway.endpoint import PREFIX
from services.gateway.settings import Settings
from tests.contract.gateway.conftest import running
from tests.doubles.mesh import MeshProcesses
from tests.doubles.wire_client import WireClient, batch
from tests.mesh.foreign import CONTROL, OPENAI, ROUTES, Attempt, Belongings, Safe, belongings
from tests.mesh.main_path import adam, sample

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(180)]

VICTIM, STRANGER = "tml-victim-of-strangers", "tml-stranger-to-all"
REFUSED = (400, 403, 404, 410)
PATHS = sorted(ROUTES)


class Stage:
    """Two tenants with one of everything; requests of the stranger by hand, of any method."""

    def __init__(self, mesh: MeshProcesses, victim: WireClient, stranger: WireClient) -> None:
        self.mesh = mesh
        self.victim, self.stranger = victim, stranger
        self.theirs: Belongings
        self.mine: Belongings

    async def set_up(self) -> None:
        self.theirs, self.mine = await belongings(self.victim), await belongings(self.stranger)

    async def send(self, method: str, path: str, attempt: Attempt) -> httpx.Response:
        url = path.replace(":path}", "}").format(**{k: quote(v, safe="") for k, v in (attempt.path or {}).items()})
        if path.startswith((OPENAI, CONTROL, "/console")):  # not below /api/v1
            url = f"{self.mesh.base_url}{url}"
        if method == "POST":
            return await self.stranger.post(url, attempt.body if attempt.body is not None else {})
        return await self.stranger._clients[0].request(method, url, json=attempt.body)

    def backend_calls(self) -> dict[str, Any]:
        """Everything the engines have done, and every command that was ever admitted."""
        host, port = self.mesh.mesh.addresses.redis.rsplit(":", 1)
        with Redis(host=host, port=int(port)) as redis:
            arrivals = redis.get("tm:{p:double}:arrival")
        return {
            "trainer": self.mesh.journal("trainer"),
            "sampler": self.mesh.journal("sampler"),
            "arrivals": int(arrivals or 0),
        }


@pytest.fixture
async def stage(plain_mesh: MeshProcesses) -> AsyncIterator[Stage]:
    for key in (VICTIM, STRANGER):
        plain_mesh.add_key(key)
    made = Stage(plain_mesh, WireClient([plain_mesh.base_url], VICTIM), WireClient([plain_mesh.base_url], STRANGER))
    await made.set_up()
    yield made
    for client in (made.victim, made.stranger):
        await client.close()


async def test_every_route_is_classified_SEC_05(plain_mesh: MeshProcesses, tmp_path: Path) -> None:
    settings = Settings(
        key_file=str(plain_mesh.settings.key_file),
        pepper_file=str(plain_mesh.settings.pepper_file),
        scheduler=plain_mesh.scheduler,
    )
    async with running(settings) as (http, _):
        transport: Any = http._transport
        routes = [route for route in transport.app.router.routes if isinstance(route, Route)]
    served = {(method, route.path.removeprefix(PREFIX)) for route in routes for method in route.methods or ()}
    served = {(method, path) for method, path in served if method != "HEAD"}
    assert served == set(ROUTES), "say in tests/mesh/foreign.py how a foreign id is answered there"


async def test_a_foreign_id_is_refused_on_every_route_and_calls_no_backend_SEC_05_SEC_07(stage: Stage) -> None:
    before = stage.backend_calls()
    ordered = 0
    wrong: list[str] = []
    for method, path in PATHS:
        case = ROUTES[method, path]
        for attempt in [] if isinstance(case, Safe) else case(stage.theirs, stage.mine):
            answer = await stage.send(method, path, attempt)
            problem = await judged(stage, answer, attempt)
            ordered += attempt.ordered
            if problem:
                wrong.append(f"{method} {path} {attempt}: {problem}")
    assert wrong == []
    after = stage.backend_calls()
    assert after["trainer"] == before["trainer"]
    assert after["sampler"] == before["sampler"]
    assert after["arrivals"] - before["arrivals"] == ordered, "only commands of the stranger's own were admitted"


async def judged(stage: Stage, answer: httpx.Response, attempt: Attempt) -> str:
    """What is wrong with an answer, "" = nothing."""
    if attempt.ordered:
        if answer.status_code != 200:
            return f"{answer.status_code}, not accepted to fail in its turn"
        result = await stage.stranger.future(answer.json()["request_id"])
        return "" if result.get("category") == "user" and "belongs to" in result["error"] else f"{result}"
    if answer.status_code not in REFUSED:
        return f"{answer.status_code} {answer.text[:200]}"
    told = answer.json()
    return "" if "detail" in told or told["error"]["message"] else "no text"


async def test_lists_hold_nothing_foreign_SEC_05(stage: Stage) -> None:
    for (method, path), case in ROUTES.items():
        if isinstance(case, Safe) and case.lists:
            answer = await stage.send(method, path, Attempt())
            told = [value for value in stage.theirs.values() if value in answer.text]
            assert told == [], (method, path)


async def test_what_strangers_tried_left_no_mark_SEC_05(stage: Stage) -> None:
    """After all attempts the victim's session, model, checkpoints, sampler and results are as they were."""
    theirs, victim = stage.theirs, stage.victim
    for (method, path), case in ROUTES.items():
        for attempt in [] if isinstance(case, Safe) else case(theirs, stage.mine):
            await stage.send(method, path, attempt)
    beat = await victim.post("/session_heartbeat", {"session_id": theirs.session})
    assert beat.status_code == 200
    for path in (theirs.checkpoint, theirs.snapshot):
        assert (await victim.post("/weights_info", {"tinker_path": path})).status_code == 200
    for seq, body in ((4, batch(theirs.model, 4, seed=2)), (5, adam(theirs.model, 5))):
        sent = await victim.post("/forward_backward" if seq == 4 else "/optim_step", body)
        assert "error" not in await victim.future(sent.json()["request_id"])
    sampled = await victim.post("/asample", sample(theirs.sampler, 2))
    assert await victim.future(sampled.json()["request_id"], protobuf=True)
    assert "error" not in await victim.future(theirs.future)


async def test_an_access_token_grants_reading_and_nothing_else_SEC_04(stage: Stage) -> None:
    """The victim's own key as the token: its checkpoint may be read and loaded, not changed."""
    token = {"weights_access_token": VICTIM}
    info = await stage.stranger.post("/weights_info", {"tinker_path": stage.theirs.checkpoint, **token})
    assert info.status_code == 200
    load = {"model_id": stage.mine.model, "seq_id": 4, "path": stage.theirs.checkpoint, "optimizer": False, **token}
    sent = await stage.stranger.post("/load_weights", load)
    assert "error" not in await stage.stranger.future(sent.json()["request_id"])
    run = {"run_id": stage.theirs.model, "kind": "weights", "name": "ck"}
    deleted = await stage.send("DELETE", "/training_runs/{run_id}/checkpoints/{kind}/{name}", Attempt(token, run))
    assert deleted.status_code == 403


@pytest.mark.parametrize("path", ["/v1/load_lora_adapter", "/load_lora_adapter", "/v1/unload_lora_adapter", "/metrics"])
async def test_no_route_reaches_an_engine_or_what_operators_use_SEC_09(plain_mesh: MeshProcesses, path: str) -> None:
    body = {"lora_name": "x", "lora_path": "/etc"}
    async with httpx.AsyncClient(base_url=plain_mesh.base_url, trust_env=False) as client:
        for prefix in ("", PREFIX):
            answer = await client.post(f"{prefix}{path}", json=body, headers={"x-api-key": plain_mesh.api_key})
            assert answer.status_code == 404
