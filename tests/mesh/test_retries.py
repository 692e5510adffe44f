"""Every POST of the main path five times at once through two gateways and two schedulers: one effect, one id.

A changed payload under a used key is refused, and what was accepted under that key goes on undisturbed.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import partial

import pytest

from tests.doubles import admin
from tests.doubles.eventually import eventually
from tests.doubles.fake_trainer import BASE_MODEL
from tests.doubles.journal import datum_counts, step_counts, unit_counts
from tests.doubles.mesh import MeshProcesses
from tests.doubles.wire_client import Body, Json, WireClient, batch, batch_json, batch_zstd
from tests.mesh.copies import COPIES, Copies, Said, route, the_one
from tests.mesh.main_path import (
    LORA,
    accepted,
    adam,
    base_sampler,
    commands,
    create_model,
    created,
    done,
    sample,
    saved,
)

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(120)]
SEQ = 700_000_000_000_000_001  # past what a double holds exactly

MAIN_PATH = {
    "create_session",
    "create_model",
    "forward_backward protobuf",
    "forward_backward zstd",
    "forward_backward JSON",
    "optim_step",
    "save_weights",
    "load_weights into a new model",
    "load_weights into a model",
    "save_weights_for_sampler named",
    "save_weights_for_sampler unnamed",
    "create_sampling_session",
    "asample",
    "session_heartbeat",
    "cancel_future",
    "retrieve_future",
    "unload_model",
    "sessions/finish",
}
NOTHING_CAN_DIFFER = {
    "session_heartbeat": "its body is the session's id",
    "cancel_future": "its body is the request's id",
    "retrieve_future": "its body is the request's id, and it changes nothing",
    "unload_model": "its body is the model's id",
    "sessions/finish": "the session is its key and ends once: the first outcome stays (see the contract of sessions)",
}


@pytest.fixture(scope="module")
def two_doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeshProcesses]:
    directory = tmp_path_factory.mktemp("doors")
    with MeshProcesses(
        directory, gateways=2, schedulers=2, separate_gateways=True, trainer_options=["--slots", "32"]
    ) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def said() -> Said:
    return Said()


@pytest.fixture
async def client(two_doors: MeshProcesses) -> AsyncIterator[WireClient]:
    made = WireClient(two_doors.gateway_urls, two_doors.api_key)
    yield made
    await made.close()


@pytest.fixture
def copies(client: WireClient, said: Said) -> Copies:
    return Copies(client, said)


async def test_create_session_IDEM_01(copies: Copies, client: WireClient, two_doors: MeshProcesses) -> None:
    body: Json = {"tags": ["a"], "user_metadata": {"k": 1}, "sdk_version": "0.38.0", "type": "create_session"}
    key = {"x-idempotency-key": f"stainless-python-retry-{uuid.uuid4()}"}
    before = admin.session_count(two_doors.scheduler)
    session = (await copies.five("create_session", body, **key))["session_id"]
    assert admin.session_count(two_doors.scheduler) == before + 1
    changed: list[Body] = [{**body, "tags": ["b"]}, {**body, "user_metadata": {"k": 2}}, {**body, "tags": []}]

    async def look() -> object:
        report = admin.session(two_doors.scheduler, session)
        assert report is not None
        return report.state, report.sdk_version

    await copies.refused("create_session", changed, look, **key)
    assert the_one([await client.post("/create_session", body, **key)])["session_id"] == session
    assert await client.session() != session


async def test_create_model_takes_one_slot_IDEM_02(
    copies: Copies, client: WireClient, two_doors: MeshProcesses
) -> None:
    session = await client.session()
    body = create_model(session)
    made = await copies.five("create_model", body)
    changed: list[Body] = [
        {**body, "lora_config": {**LORA, "rank": 4}},
        {**body, "lora_config": {**LORA, "seed": 5}},
        {**body, "user_metadata": {"another": "one"}},
        {**body, "base_model": "nobody/none"},
    ]
    await copies.refused("create_model", changed, copies.outcome(made))
    assert (await client.future(made["request_id"]))["model_id"] == made["model_id"] == f"{session}:train:0"
    assert effects(two_doors, "init", made["model_id"]) == 1


def effects(mesh: MeshProcesses, kind: str, model_id: str) -> int:
    return sum(entry["kind"] == kind and entry["model_id"] == model_id for entry in mesh.journal())


def state(mesh: MeshProcesses, model: str) -> Json:
    """What the double saved as `end`: weights, moments, step."""
    return dict(json.loads((mesh.settings.store / "runs" / model / "weights" / "end" / "state.json").read_bytes()))


async def test_training_ends_bitwise_where_an_undisturbed_run_ends_IDEM_03_IDEM_09(
    copies: Copies, client: WireClient, two_doors: MeshProcesses
) -> None:
    """Each command in copies and with changed payloads, beside a run that sends each once."""
    session = await client.session()
    plain, disturbed, other = [await created(client, session, number) for number in range(3)]
    for post, body, _ in commands(plain):
        await done(client, route(post), body)
    accepted = {}
    for post, body, changed in commands(disturbed):
        accepted[post] = await copies.five(post, body)
        await copies.refused(post, changed, copies.outcome(accepted[post]))
    for post, body, _ in commands(other):
        wrong = batch(other, 3, seed=99) if post.endswith("JSON") else body
        await done(client, route(post), wrong)
    assert state(two_doors, disturbed) == state(two_doors, plain)
    assert state(two_doors, other) != state(two_doors, plain), "negative control: one changed payload taken"

    requests = {post: answer["request_id"] for post, answer in accepted.items()}
    counts = datum_counts(two_doors.journal())
    for post in ("forward_backward protobuf", "forward_backward zstd", "forward_backward JSON"):
        assert [counts[(requests[post], index)] for index in range(4)] == [1, 1, 1, 0]
    assert step_counts(two_doors.journal())[requests["optim_step"]] == 1
    assert effects(two_doors, "save", disturbed) == 1


async def test_one_command_in_three_encodings_is_one_command_IDEM_09(
    copies: Copies, client: WireClient, two_doors: MeshProcesses
) -> None:
    model = await created(client, await client.session())
    body = batch(model, 1, seed=1)
    mixed: list[Body] = [body, batch_json(body), batch_zstd(body), batch_json(body), body]
    made = the_one(await copies.answers("forward_backward protobuf", mixed))
    await copies.refused("optim_step", [adam(model, 1)], copies.outcome(made))  # another operation under the used key
    late = the_one(await copies.answers("forward_backward protobuf", mixed))
    assert late["request_id"] == made["request_id"]
    counts = datum_counts(two_doors.journal())
    assert [counts[(made["request_id"], index)] for index in range(4)] == [1, 1, 1, 0]


async def test_load_weights_in_both_forms_IDEM_01_ADD_04(
    copies: Copies, client: WireClient, two_doors: MeshProcesses
) -> None:
    session = await client.session()
    model = await created(client, session)
    paths = [await saved(client, model, seq, f"p{seq}") for seq in (1, 2)]
    create = {"session_id": session, "model_seq_id": 1, "path": paths[0], "optimizer": True, "type": "load_weights"}
    made = await copies.five("load_weights into a new model", create)
    changed: list[Body] = [{**create, "optimizer": False}, {**create, "path": paths[1]}]
    await copies.refused("load_weights into a new model", changed, copies.outcome(made))
    await copies.refused(
        "create_model", [create_model(session, 1)], copies.outcome(made)
    )  # both creations share their keys
    assert (await client.future(made["request_id"]))["model_id"] == f"{session}:train:1"
    load = {"model_id": model, "seq_id": 3, "path": paths[0], "optimizer": False, "type": "load_weights"}
    into = await copies.five("load_weights into a model", load)
    changed = [{**load, "optimizer": True}, {**load, "path": paths[1]}]
    await copies.refused("load_weights into a model", changed, copies.outcome(into))
    assert [effects(two_doors, "load", name) for name in (f"{session}:train:1", model)] == [1, 1]


async def test_save_for_sampler_named_and_unnamed_IDEM_13(
    copies: Copies, client: WireClient, two_doors: MeshProcesses
) -> None:
    model = await created(client, await client.session())
    named = {"model_id": model, "seq_id": 1, "path": "s", "kind": "snapshot", "type": "save_weights_for_sampler"}
    made = await copies.five("save_weights_for_sampler named", named)
    unnamed = {"model_id": model, "seq_id": 2, "kind": "snapshot", "type": "save_weights_for_sampler"}
    changed: list[Body] = [{**named, "path": "t"}, {**unnamed, "seq_id": 1, "sampling_session_seq_id": 9}]
    await copies.refused("save_weights_for_sampler named", changed, copies.outcome(made))
    assert (await client.future(made["request_id"]))["path"] == f"tinker://{model}/sampler_weights/s"
    # The SDK numbers the sampling session anew in every retry: all of them name the one session.
    numbered: list[Body] = [{**unnamed, "sampling_session_seq_id": n} for n in range(COPIES)]
    request = the_one(await copies.answers("save_weights_for_sampler unnamed", numbered))
    await copies.refused("save_weights_for_sampler unnamed", [{**named, "seq_id": 2}], copies.outcome(request))
    assert (await client.future(request["request_id"]))["sampling_session_id"]
    assert effects(two_doors, "snapshot", model) == 2


async def test_sampling_session_IDEM_13(copies: Copies, client: WireClient) -> None:
    session = await client.session()
    model = await created(client, session)
    one, two = [await saved(client, model, seq, f"s{seq}", "save_weights_for_sampler") for seq in (1, 2)]
    opened = {"session_id": session, "sampling_session_seq_id": 7, "model_path": one, "type": "create_sampling_session"}
    sampler = (await copies.five("create_sampling_session", opened))["sampling_session_id"]
    base: Json = {"session_id": session, "sampling_session_seq_id": 7, "base_model": BASE_MODEL}
    look = partial(client.get, f"/samplers/{sampler}")
    await copies.refused("create_sampling_session", [{**opened, "model_path": two}, base], look)
    assert (await look())["model_path"] == one
    fuller = await accepted(client, "/create_sampling_session", {**opened, "base_model": BASE_MODEL})
    assert fuller["sampling_session_id"] == sampler, "what can be derived may be left out"


async def test_sample_runs_once_IDEM_04_IDEM_08(copies: Copies, client: WireClient, two_doors: MeshProcesses) -> None:
    sampler = await base_sampler(client, await client.session())
    body = sample(sampler, SEQ, n=4)
    made = await copies.five("asample", body)
    assert len(set(made["sample_sequence_ids"])) == body["num_samples"]
    hotter = {**body["sampling_params"], "temperature": 0.5}
    changed: list[Body] = [
        sample(sampler, SEQ, prompt=(9,), n=4),
        {**body, "num_samples": 2},
        {**body, "sampling_params": hotter},
    ]
    await copies.refused("asample", changed, partial(client.future, made["request_id"], protobuf=True))
    other = await accepted(client, "/asample", sample(sampler, SEQ + 1, n=4))
    assert other["request_id"] != made["request_id"]
    runs = Counter(entry["request"] for entry in two_doors.journal("sampler") if entry["kind"] == "sample")
    assert runs[made["request_id"]] == 1


async def test_cancel_ends_a_sample_once_and_polls_agree_FUT_01_FUT_08(
    copies: Copies, client: WireClient, two_doors: MeshProcesses
) -> None:
    sampler = await base_sampler(client, await client.session())
    two_doors.inject("sampler", [{"kind": "sample", "action": "hold_before", "times": 0}])
    made = await accepted(client, "/asample", sample(sampler, 1))
    ask = {"request_id": made["request_id"]}
    address = two_doors.mesh.addresses.sampler
    await eventually(lambda: admin.running_samples(address) == 1)
    assert await copies.five("cancel_future", ask) == {}
    await eventually(lambda: admin.running_samples(address) == 0)
    two_doors.inject("sampler", [])
    outcome = await copies.five("retrieve_future", ask)
    assert (outcome["error"], outcome["category"]) == ("cancelled", "user")
    assert await copies.five("retrieve_future", ask) == outcome
    assert admin.timeline(two_doors.scheduler, made["request_id"]).count("settled") == 1
    assert not [entry for entry in two_doors.journal("sampler") if entry.get("request") == made["request_id"]]
    await done(client, "/asample", sample(sampler, 2))


async def test_heartbeat_unload_and_finish_IDEM_11(
    copies: Copies, client: WireClient, two_doors: MeshProcesses
) -> None:
    session = await client.session()
    model = await created(client, session)
    before = [entry["kind"] for entry in two_doors.journal()].count("unload")
    await copies.five("session_heartbeat", {"session_id": session, "type": "session_heartbeat"})
    made = await copies.five("unload_model", {"model_id": model, "type": "unload_model"})
    assert "error" not in await client.future(made["request_id"])
    finish: Json = {"reason": {"type": "success"}, "detail": None}
    path = f"/sessions/{session}/finish"
    answers = await copies.answers("sessions/finish", [finish] * COPIES, path=path)
    assert [answer.status_code for answer in answers] == [204] * COPIES, [answer.text for answer in answers]
    again = await copies.five("unload_model", {"model_id": model, "type": "unload_model"})
    assert again["request_id"] == made["request_id"]
    assert [entry["kind"] for entry in two_doors.journal()].count("unload") == before + 1
    report = admin.session(two_doors.scheduler, session)
    assert report is None or report.state == "finished"
    refused = await client.post("/session_heartbeat", {"session_id": session, "type": "session_heartbeat"})
    assert refused.status_code == 410


async def test_no_unit_ran_twice_and_no_post_was_left_out_IDEM_14(two_doors: MeshProcesses, said: Said) -> None:
    """Over everything this module did."""
    assert set(unit_counts(two_doors.journal()).values()) == {1}
    assert said.in_copies == MAIN_PATH
    assert said.changed == MAIN_PATH - NOTHING_CAN_DIFFER.keys()
    served = [admin.calls_served(address) for address in two_doors.mesh.addresses.schedulers]
    assert max(served) < 2 * min(served), f"one scheduler stood aside: {served}"
