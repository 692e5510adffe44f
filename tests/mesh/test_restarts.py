"""The whole mesh stopped and started again: paths, futures and models of earlier runs are there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.doubles.fake_trainer import BASE_MODEL
from tests.doubles.mesh import MeshProcesses
from tests.doubles.wire_client import WireClient, batch
from tests.mesh import main_path

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(180)]

ESCAPES = [
    "tinker://../../etc/weights/passwd",
    "tinker://{model}/weights/../../../../etc/passwd",
    "tinker://{model}/sampler_weights/..",
    "tinker://{model}/weights/a%2F..%2Fb",
    "tinker://{model}/weights/a\x00",
    "/etc/passwd",
]


async def train_and_save(client: WireClient) -> tuple[str, str]:
    """The tinker:// paths of a checkpoint and of a snapshot."""
    model = await main_path.created(client, await client.session(), rank=4)
    await main_path.done(client, "/forward_backward", batch(model, 1, seed=1))
    await main_path.done(client, "/optim_step", main_path.adam(model, 2, learning_rate=0.5))
    checkpoint = await main_path.saved(client, model, 3, "kept")
    return checkpoint, await main_path.saved(client, model, 4, "kept", "save_weights_for_sampler")


async def losses_after_load(client: WireClient, path: str) -> Any:
    session = await client.session()
    body = {"session_id": session, "model_seq_id": 0, "path": path, "optimizer": True}
    model = (await main_path.done(client, "/load_weights", body))["model_id"]
    return (await main_path.done(client, "/forward_backward", batch(model, 1, seed=7, forward_only=True)))["metrics"]


async def sampled(client: WireClient, path: str) -> Any:
    sampler = await main_path.snapshot_sampler(client, await client.session(), path)
    return (await main_path.done(client, "/asample", main_path.sample(sampler, 0, seed=1)))["sequences"]


async def test_every_path_is_still_there_after_two_restarts_CKPT_18_GAP_06(tmp_path: Path) -> None:
    with MeshProcesses(tmp_path / "mesh") as mesh:
        client = WireClient([mesh.base_url], mesh.api_key)
        checkpoint, snapshot = await train_and_save(client)
        first = await losses_after_load(client, checkpoint), await sampled(client, snapshot)
        await client.close()
    for _ in range(2):
        with MeshProcesses(tmp_path / "mesh") as mesh:
            client = WireClient([mesh.base_url], mesh.api_key)
            assert (await losses_after_load(client, checkpoint), await sampled(client, snapshot)) == first
            info = (await client.post("/weights_info", {"tinker_path": checkpoint})).json()
            assert (info["base_model"], info["lora_rank"]) == (BASE_MODEL, 4)
            await client.close()


async def test_escape_attempts_kill_nothing_SEC_07(mesh: MeshProcesses) -> None:
    client = WireClient([mesh.base_url], mesh.api_key)
    session = await client.session()
    model = await main_path.created(client, session)
    for number, attempt in enumerate(ESCAPES):
        path = attempt.format(model=model)
        bodies: list[tuple[str, dict[str, Any]]] = [
            ("/weights_info", {"tinker_path": path}),
            ("/load_weights", {"session_id": session, "model_seq_id": 10 + number, "path": path, "optimizer": False}),
            (
                "/create_sampling_session",
                {"session_id": session, "sampling_session_seq_id": number, "model_path": path},
            ),
            ("/save_weights", {"model_id": model, "seq_id": 1 + number, "path": path}),
        ]
        for route, body in bodies:
            await assert_refused(client, route, body)
    after = await main_path.done(client, "/forward_backward", batch(model, 1 + len(ESCAPES), seed=1))
    assert "loss:sum" in after["metrics"]
    assert {name: mesh.restarts(name) for name in mesh.names("")} == dict.fromkeys(mesh.names(""), 0)
    await client.close()


async def assert_refused(client: WireClient, route: str, body: dict[str, Any]) -> None:
    """At once with a 4xx, or in its turn with a user failure."""
    answer = await client.post(route, body)
    if answer.status_code == 200 and "request_id" in answer.json():
        assert (await client.future(answer.json()["request_id"]))["category"] == "user", (route, body)
        return
    assert 400 <= answer.status_code < 500, (route, body, answer.status_code, answer.text)
    assert "detail" in answer.json()
