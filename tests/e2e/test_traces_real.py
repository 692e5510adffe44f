"""The spans of the real trainer and sampler lie in the request's own trace."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from tests.doubles.mesh import RealMeshProcesses
from tests.doubles.otlp import Receiver, Span, chain, tops
from tests.doubles.wire_client import Json, WireClient, batch

pytestmark = [pytest.mark.mesh, pytest.mark.engine, pytest.mark.timeout(280)]

CLIENT_SPAN = "b7ad6b7169203331"
LORA = {"rank": 8, "seed": 4, "train_unembed": True, "train_mlp": True, "train_attn": True}
TRAINER, SAMPLER = (f"/tinkermesh.v1.{name}/" for name in ("Trainer", "Sampler"))


async def traced(client: WireClient, path: str, body: Json | bytes) -> tuple[str, Any]:
    """The trace id and the result."""
    trace_id = secrets.token_hex(16)
    made = await client.post(path, body, traceparent=f"00-{trace_id}-{CLIENT_SPAN}-01")
    assert made.status_code == 200, made.text
    return trace_id, await client.future(made.json()["request_id"], protobuf=path == "/asample")


def above(spans: list[Span], name: str, count: int) -> list[str]:
    """The chain of the one span of that name, `count` long."""
    (span,) = [span for span in spans if str(span) == name]
    return chain(spans, span)[:count]


async def test_a_pass_a_save_and_a_sample_are_traced_into_the_engines(
    real_mesh: RealMeshProcesses, receiver: Receiver
) -> None:
    client = WireClient([real_mesh.base_url], real_mesh.api_key)
    session = await client.session()
    body: Json = {"session_id": session, "model_seq_id": 0, "base_model": real_mesh.settings.model_name}
    _, made = await traced(client, "/create_model", {**body, "lora_config": LORA})
    model = made["model_id"]
    trained, _ = await traced(client, "/forward_backward", batch(model, 1, seed=1))
    saved, save = await traced(client, "/save_weights_for_sampler", {"model_id": model, "seq_id": 2, "path": "s"})
    opened = {"session_id": session, "sampling_session_seq_id": 0, "model_path": save["path"]}
    sampler = (await client.post("/create_sampling_session", opened)).json()["sampling_session_id"]
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]}
    sample = {"sampling_session_id": sampler, "seq_id": 1, "num_samples": 1, "prompt": prompt}
    sampled, _ = await traced(client, "/asample", {**sample, "sampling_params": {"max_tokens": 2, "temperature": 1.0}})
    await client.close()

    execute = [f"trainer: {TRAINER}Execute", f"scheduler: {TRAINER}Execute", "scheduler: unit"]
    spans = receiver.wait_trace(trained, "trainer: trainer.pass", "scheduler: settle")
    assert above(spans, "trainer: trainer.pass", 4)[1:] == execute
    spans = receiver.wait_trace(saved, "trainer: trainer.publish", "trainer: trainer.capture", "scheduler: settle")
    assert above(spans, "trainer: trainer.capture", 5)[1:] == ["trainer: trainer.snapshot", *execute]
    assert above(spans, "trainer: trainer.publish", 4)[1:] == execute
    spans = receiver.wait_trace(sampled, "sampler: sampler.generate", "sampler: sampler.load_adapter")
    served = [
        "sampler: sampler.sample",
        f"sampler: {SAMPLER}Sample",
        f"scheduler: {SAMPLER}Sample",
        "scheduler: sample",
    ]
    for stage in ("load_adapter", "generate"):
        assert above(spans, f"sampler: sampler.{stage}", 5)[1:] == served
    assert [top.parent_id for trace in (trained, saved, sampled) for top in tops(receiver.trace(trace))] == (
        [CLIENT_SPAN] * 3
    )
