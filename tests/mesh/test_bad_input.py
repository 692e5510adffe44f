"""Bad input through the whole control plane: the right error at the right place, and nothing reaches a pass."""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np
import pytest
from tinkermesh.wire.v1 import wire_pb2 as wire

from tests.doubles.journal import datum_counts
from tests.doubles.mesh import MeshProcesses
from tests.doubles.wire_client import WireClient, batch
from tests.mesh.main_path import created

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(120)]
ADAM = {"learning_rate": 1e-3}


@pytest.fixture
async def client(mesh: MeshProcesses) -> AsyncIterator[WireClient]:
    made = WireClient([mesh.base_url], mesh.api_key)
    yield made
    await made.close()


@pytest.fixture
async def model(client: WireClient) -> str:
    return await created(client, await client.session())


def spoiled(model: str, seq_id: int, how: str) -> bytes:
    request = wire.ForwardBackwardRequest.FromString(batch(model, seq_id, seed=seq_id))
    inputs = request.data[1].loss_fn_inputs
    if how == "no weights of the right length":
        inputs["weights"].dense, inputs["weights"].shape[0] = b"\0" * 4, 1
    if how == "token out of range":
        request.data[1].model_input[0].encoded_text.tokens = np.full(6, 512, "<i4").tobytes()
    if how == "not finite":
        inputs["weights"].dense = np.full(6, np.nan, "<f4").tobytes()
    if how == "unknown loss":
        request.loss_fn = "mean_squared"
    if how == "unknown input":
        inputs["foo"].CopyFrom(inputs["weights"])
    if how == "empty datum":
        request.data[1].Clear()
    if how == "no data":
        del request.data[:]
    return request.SerializeToString()


SPOILED = {
    "no weights of the right length": "weights",
    "token out of range": "512",
    "not finite": "weights",
    "unknown loss": "mean_squared",
    "unknown input": "foo",
    "empty datum": "datum 1",
    "no data": "data",
}


async def test_bad_batch_fails_in_its_turn_and_the_next_command_succeeds_VAL_01(
    client: WireClient, model: str, mesh: MeshProcesses
) -> None:
    """All seven kinds pipelined between good batches of one model."""
    sent: dict[str, str] = {}
    for number, how in enumerate(SPOILED):
        answer = await client.post("/forward_backward", spoiled(model, 2 * number + 1, how))
        assert answer.status_code == 200, answer.text
        sent[how] = answer.json()["request_id"]
        good = await client.post("/forward_backward", batch(model, 2 * number + 2, seed=99))
        sent[f"good {number}"] = good.json()["request_id"]
    step = {"model_id": model, "seq_id": 2 * len(SPOILED) + 1, "adam_params": ADAM, "type": "optim_step"}
    sent["step"] = (await client.post("/optim_step", step)).json()["request_id"]
    for name, request_id in sent.items():
        result = await client.future(request_id)
        if name in SPOILED:
            assert result["category"] == "user", (name, result)
            assert SPOILED[name] in result["error"], (name, result)
            assert "Traceback" not in result["error"]
        else:
            assert "error" not in result, (name, result)
    ran = {request for request, _ in datum_counts(mesh.journal())}
    assert not ran & {sent[how] for how in SPOILED}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/forward_backward", b"\xff\xff\xff"),
        ("/optim_step", b"{"),
        ("/session_heartbeat", {}),
        ("/create_model", {"session_id": 3}),
        ("/asample", {"sampling_session_id": "x", "seq_id": 2.5}),
        ("/optim_step", {"model_id": "x", "seq_id": True}),
        ("/retrieve_future", {"request_id": 7}),
    ],
)
async def test_unreadable_envelope_is_400_with_a_text_API_06(client: WireClient, path: str, body: object) -> None:
    answer = await client.post(path, body)  # type: ignore[arg-type]
    assert answer.status_code == 400
    assert answer.text and "Traceback" not in answer.text


async def test_logs_hold_no_traceback_after_all_that_API_06(mesh: MeshProcesses) -> None:
    for name in [*mesh.names("gateway"), *mesh.names("scheduler")]:
        assert "Traceback" not in mesh.logs(name)
