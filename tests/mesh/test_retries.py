"""Every POST of the main path five times at once through two gateways and two schedulers: one effect, one id."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence

import httpx
import pytest

from tests.doubles.fake_trainer import BASE_MODEL
from tests.doubles.journal import datum_counts, unit_counts
from tests.doubles.mesh import MeshProcesses
from tests.doubles.wire_client import Json, WireClient, batch, batch_json

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(120)]
COPIES = 5
ADAM = {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12, "weight_decay": 0.0, "grad_clip_norm": 0.0}
LORA = {"rank": 8, "seed": 4, "train_unembed": True, "train_mlp": True, "train_attn": True}


@pytest.fixture(scope="module")
def two_doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeshProcesses]:
    directory = tmp_path_factory.mktemp("doors")
    with MeshProcesses(directory, gateways=2, schedulers=2, separate_gateways=True) as mesh:
        yield mesh


@pytest.fixture
async def client(two_doors: MeshProcesses) -> AsyncIterator[WireClient]:
    made = WireClient(two_doors.gateway_urls, two_doors.api_key)
    yield made
    await made.close()


def the_one(answers: Sequence[httpx.Response]) -> Json:
    """Every answer is 200 and says the same."""
    assert [a.status_code for a in answers] == [200] * len(answers), [a.text[:300] for a in answers]
    bodies = [a.json() for a in answers]
    assert all(body == bodies[0] for body in bodies), bodies
    return dict(bodies[0])


async def five(client: WireClient, path: str, body: Json | bytes) -> Json:
    return the_one(await client.post_many(path, [body] * COPIES))


async def refused(client: WireClient, path: str, body: Json | bytes, first: Json) -> None:
    """A changed payload under a used key: refused at both gateways, the first one undisturbed."""
    for answer in await client.post_many(path, [body, body]):
        assert answer.status_code == 400, answer.text[:300]
        assert answer.text
    assert "error" not in await client.future(first["request_id"])


async def created(client: WireClient, session: str, model_seq_id: int = 0) -> str:
    body = {"session_id": session, "model_seq_id": model_seq_id, "base_model": BASE_MODEL, "lora_config": LORA}
    made = the_one([await client.post("/create_model", body)])
    return str((await client.future(made["request_id"]))["model_id"])


async def test_create_session_IDEM_01(client: WireClient) -> None:
    body: Json = {"tags": [], "user_metadata": {}, "sdk_version": "0.38.0", "type": "create_session"}
    key = {"x-idempotency-key": str(uuid.uuid4())}
    assert the_one(await client.post_many("/create_session", [body] * COPIES, **key))["session_id"]
    other = await client.post("/create_session", body, **{"x-idempotency-key": str(uuid.uuid4())})
    assert other.json() != (await client.post("/create_session", body, **key)).json()


async def test_create_model_takes_one_slot_IDEM_02(client: WireClient, two_doors: MeshProcesses) -> None:
    session = await client.session()
    body = {"session_id": session, "model_seq_id": 0, "base_model": BASE_MODEL, "lora_config": LORA}
    made = await five(client, "/create_model", body)
    result = await client.future(made["request_id"])
    assert result["model_id"] == f"{session}:train:0"
    inits = [e for e in two_doors.journal() if e["kind"] == "init" and e["model_id"] == result["model_id"]]
    assert len(inits) == 1
    await refused(client, "/create_model", {**body, "lora_config": {**LORA, "rank": 4}}, made)


async def test_forward_backward_accumulates_once_IDEM_03(client: WireClient, two_doors: MeshProcesses) -> None:
    model = await created(client, await client.session())
    body = batch(model, 1, seed=1)
    copies: list[Json | bytes] = [body, batch_json(body), body, batch_json(body), body]
    made = the_one(await client.post_many("/forward_backward", copies))
    await refused(client, "/forward_backward", batch(model, 1, seed=2), made)
    late = the_one(await client.post_many("/forward_backward", [body, body]))
    assert late["request_id"] == made["request_id"]
    counts = datum_counts(two_doors.journal())
    assert {key: n for key, n in counts.items() if key[0] == made["request_id"]} == {
        (made["request_id"], index): 1 for index in range(3)
    }


async def test_optim_step_steps_once_IDEM_01(client: WireClient, two_doors: MeshProcesses) -> None:
    model = await created(client, await client.session())
    await client.post("/forward_backward", batch(model, 1, seed=3))
    body = {"model_id": model, "seq_id": 2, "adam_params": ADAM, "type": "optim_step"}
    made = await five(client, "/optim_step", body)
    await refused(client, "/optim_step", {**body, "adam_params": {**ADAM, "learning_rate": 1.0}}, made)
    steps = Counter(r for e in two_doors.journal() if e["kind"] == "optim" for r in e["requests"])
    assert steps[made["request_id"]] == 1


async def test_save_weights_publishes_once_IDEM_01(client: WireClient) -> None:
    model = await created(client, await client.session())
    body = {"model_id": model, "seq_id": 1, "path": "a", "overwrite": False, "type": "save_weights"}
    made = await five(client, "/save_weights", body)
    assert (await client.future(made["request_id"]))["path"] == f"tinker://{model}/weights/a"
    await refused(client, "/save_weights", {**body, "path": "b"}, made)


async def test_load_weights_in_both_forms_IDEM_01(client: WireClient, two_doors: MeshProcesses) -> None:
    session = await client.session()
    model = await created(client, session)
    save = {"model_id": model, "seq_id": 1, "path": "a", "type": "save_weights"}
    path = (await client.future((await five(client, "/save_weights", save))["request_id"]))["path"]
    create = {"session_id": session, "model_seq_id": 1, "path": path, "optimizer": True, "type": "load_weights"}
    made = await five(client, "/load_weights", create)
    assert (await client.future(made["request_id"]))["model_id"] == f"{session}:train:1"
    await refused(client, "/load_weights", {**create, "optimizer": False}, made)
    load = {"model_id": model, "seq_id": 2, "path": path, "optimizer": False, "type": "load_weights"}
    into = await five(client, "/load_weights", load)
    await refused(client, "/load_weights", {**load, "optimizer": True}, into)
    loads = Counter(e["model_id"] for e in two_doors.journal() if e["kind"] == "load")
    assert loads[f"{session}:train:1"] == 1
    assert loads[model] == 1


async def test_save_for_sampler_named_and_unnamed_IDEM_13(client: WireClient) -> None:
    session = await client.session()
    model = await created(client, session)
    named = {"model_id": model, "seq_id": 1, "path": "s", "kind": "snapshot", "type": "save_weights_for_sampler"}
    made = await five(client, "/save_weights_for_sampler", named)
    assert (await client.future(made["request_id"]))["path"] == f"tinker://{model}/sampler_weights/s"
    await refused(client, "/save_weights_for_sampler", {**named, "path": "other"}, made)
    unnamed = {"model_id": model, "seq_id": 2, "kind": "snapshot", "type": "save_weights_for_sampler"}
    # The SDK numbers the sampling session anew in every retry: all of them name the one session.
    copies = [{**unnamed, "sampling_session_seq_id": n} for n in range(COPIES)]
    request = the_one(await client.post_many("/save_weights_for_sampler", copies))
    assert (await client.future(request["request_id"]))["sampling_session_id"]


async def test_sampling_session_and_sample_IDEM_04(client: WireClient, two_doors: MeshProcesses) -> None:
    session = await client.session()
    opened = {
        "session_id": session,
        "sampling_session_seq_id": 0,
        "base_model": BASE_MODEL,
        "type": "create_sampling_session",
    }
    sampler = (await five(client, "/create_sampling_session", opened))["sampling_session_id"]
    body = sample(sampler, 700_000_000_000_000_001, [1, 2, 3])
    made = await five(client, "/asample", body)
    assert len(set(made["sample_sequence_ids"])) == 4
    other = await client.post("/asample", sample(sampler, 700_000_000_000_000_002, [1, 2, 3]))
    assert other.json()["request_id"] != made["request_id"]
    first = await client.future(made["request_id"], protobuf=True)
    assert first == await client.future(made["request_id"], protobuf=True)
    await refused(client, "/asample", sample(sampler, 700_000_000_000_000_001, [9]), made)
    runs = Counter(e["request"] for e in two_doors.journal("sampler") if e["kind"] == "sample")
    assert runs[made["request_id"]] == 1


def sample(sampler: str, seq_id: int, prompt: list[int]) -> Json:
    return {
        "sampling_session_id": sampler,
        "seq_id": seq_id,
        "num_samples": 4,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": prompt}]},
        "sampling_params": {"max_tokens": 5, "temperature": 1.0, "top_k": -1, "top_p": 1.0},
        "type": "sample",
    }


async def test_unload_and_finish(client: WireClient, two_doors: MeshProcesses) -> None:
    session = await client.session()
    model = await created(client, session)
    made = await five(client, "/unload_model", {"model_id": model, "type": "unload_model"})
    assert "error" not in await client.future(made["request_id"])
    finish = {"reason": {"type": "success"}, "detail": None}
    answers = await client.post_many(f"/sessions/{session}/finish", [finish] * COPIES)
    assert all(a.status_code in (200, 204) for a in answers), [a.text for a in answers]


async def test_no_unit_ran_twice_IDEM_14(two_doors: MeshProcesses) -> None:
    """Over everything this module did."""
    assert set(unit_counts(two_doors.journal()).values()) == {1}
