"""One trace per request, from the POST to the settlement, in a real OTLP receiver."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import tinker

from tests.doubles.fake_trainer import BASE_MODEL
from tests.doubles.job_client import JobClient
from tests.doubles.mesh import MeshProcesses
from tests.doubles.otlp import Receiver, Span, chain, tops
from tests.doubles.wire_client import Json, WireClient, batch
from tests.mesh import main_path

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(150)]

CLIENT_SPAN = "b7ad6b7169203331"
SCHEDULER, TRAINER, SAMPLER = (f"/tinkermesh.v1.{name}/" for name in ("Scheduler", "Trainer", "Sampler"))
REPORTED = ("scheduler: queue", "scheduler: unit", "scheduler: settle")
HELD_PASS: list[dict[str, object]] = [{"kind": "pass", "action": "hold_before", "times": 1}]


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.fixture(scope="module")
def traced(receiver: Receiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeshProcesses]:
    variables = {**receiver.environment, "PYTHONPROFILEIMPORTTIME": "1", "no_proxy": "127.0.0.1"}
    with MeshProcesses(
        tmp_path_factory.mktemp("traced"),
        gateways=2,
        schedulers=2,
        variables=variables,
        trainer_options=["--slots", "32"],
    ) as mesh:
        yield mesh


@pytest.fixture
async def client(traced: MeshProcesses) -> AsyncIterator[WireClient]:
    made = WireClient([traced.base_url], traced.api_key)
    yield made
    await made.close()


class Traced:
    """Posts inside a client's own trace."""

    def __init__(self, client: WireClient) -> None:
        self.client = client
        self.trace_id = secrets.token_hex(16)

    async def post(self, path: str, body: Json | bytes) -> httpx.Response:
        answer = await self.client.post(path, body, traceparent=f"00-{self.trace_id}-{CLIENT_SPAN}-01")
        assert answer.status_code == 200, answer.text
        return answer

    async def run(self, path: str, body: Json | bytes) -> str:
        """The request id, once its future is there."""
        request_id = str((await self.post(path, body)).json()["request_id"])
        await self.client.future(request_id, protobuf=path == "/asample")
        return request_id


async def created(client: WireClient) -> str:
    return await main_path.created(client, await client.session())


def named(spans: list[Span], name: str, service: str = "scheduler") -> Span:
    found = [span for span in spans if (span.service, span.name) == (service, name)]
    assert len(found) == 1, [f"{span.service}: {span.name}" for span in spans]
    return found[0]


def submitted(post: str) -> list[str]:
    return [f"scheduler: {SCHEDULER}Submit", f"gateway: {SCHEDULER}Submit", f"gateway: POST /api/v1/{post}"]


def check_training_trace(spans: list[Span], post: str, kind: str, request_id: str) -> None:
    """POST, Submit; under that queue, unit and settle; under the unit Execute and the trainer's work."""
    root = named(spans, f"POST /api/v1/{post}", "gateway")
    assert root.parent_id == CLIENT_SPAN
    assert root.attributes["tinkermesh.request_id"] == request_id
    assert root.attributes["http.response.status_code"] == 200
    executed = [f"trainer: {TRAINER}Execute", f"scheduler: {TRAINER}Execute", "scheduler: unit", *submitted(post)]
    assert chain(spans, named(spans, f"trainer.{kind}", "trainer")) == [f"trainer: trainer.{kind}", *executed]
    for name in ("queue", "settle"):
        for span in (span for span in spans if span.name == name):
            assert chain(spans, span) == [f"scheduler: {name}", *submitted(post)]
            assert span.attributes["request_id"] == request_id
    assert named(spans, "queue").start_ns < named(spans, "unit").start_ns < max(s.end_ns for s in spans)
    check_whole(spans)


def check_whole(spans: list[Span]) -> None:
    """No span hangs in the air, none is a second root."""
    (top,) = tops(spans)
    assert top.parent_id in ("", CLIENT_SPAN)


async def test_forward_backward_and_optim_step_are_one_trace_each(client: WireClient, receiver: Receiver) -> None:
    model = await created(client)
    steps: list[tuple[str, str, Json | bytes]] = [
        ("forward_backward", "pass", batch(model, 1, seed=1)),
        ("optim_step", "optim", main_path.adam(model, 2)),
    ]
    for path, kind, body in steps:
        one = Traced(client)
        request_id = await one.run(f"/{path}", body)
        spans = receiver.wait_trace(one.trace_id, *REPORTED, f"trainer: trainer.{kind}")
        check_training_trace(spans, path, kind, request_id)
        assert named(spans, "unit").links == ((one.trace_id, named(spans, f"{SCHEDULER}Submit").span_id),)


async def test_a_save_is_traced_to_its_publication_and_push_and_a_sample_to_the_sampler(
    client: WireClient, receiver: Receiver
) -> None:
    model = await created(client)
    save = Traced(client)
    body = {"model_id": model, "seq_id": 1, "path": "s", "type": "save_weights_for_sampler"}
    saved = await save.run("/save_weights_for_sampler", body)
    pushed = (f"sampler: {SAMPLER}LoadAdapter", f"trainer: {TRAINER}AwaitArtifact")
    receiver.wait(lambda all_spans: sum(s.name == "settle" and in_one(s, [save]) for s in all_spans) == 2)
    spans = receiver.wait_trace(
        save.trace_id, *REPORTED, "trainer: trainer.snapshot", "trainer: trainer.publish", *pushed
    )
    check_training_trace(spans, "save_weights_for_sampler", "snapshot", saved)
    assert [span.attributes["action"] for span in spans if span.name == "settle"] == ["captured", "done"]
    assert chain(spans, named(spans, "trainer.publish", "trainer"))[1] == "trainer: trainer.snapshot"
    assert chain(spans, named(spans, f"{SAMPLER}LoadAdapter", "sampler"))[2] == "scheduler: unit"

    sampler = await main_path.snapshot_sampler(client, model.split(":")[0], f"tinker://{model}/sampler_weights/s")
    one = Traced(client)
    sampled = await one.run("/asample", main_path.sample(sampler, 1))
    spans = receiver.wait_trace(one.trace_id, "scheduler: queue", "scheduler: settle", "sampler: sampler.sample")
    check_whole(spans)
    served = [f"sampler: {SAMPLER}Sample", f"scheduler: {SAMPLER}Sample", "scheduler: sample", *submitted("asample")]
    assert chain(spans, named(spans, "sampler.sample", "sampler")) == ["sampler: sampler.sample", *served]
    for name in ("queue", "settle"):
        assert chain(spans, named(spans, name)) == [f"scheduler: {name}", *submitted("asample")]
    assert named(spans, "settle").attributes["request_id"] == sampled


@pytest.mark.parametrize("stream", [True, False])
async def test_a_chat_is_one_trace_from_its_post_to_the_sampler(
    traced: MeshProcesses, client: WireClient, receiver: Receiver, stream: bool
) -> None:
    one, route = Traced(client), "/oai/api/v1/chat/completions"
    messages = [{"role": "user", "content": "x"}]
    body = {"model": BASE_MODEL, "messages": messages, "max_tokens": 4, "stream": stream}
    await one.post(f"{traced.base_url}{route}", body)
    stages = (f"sampler: {SAMPLER}SampleStream", "scheduler: generation", "scheduler: generation.tokenize")
    spans = receiver.wait_trace(one.trace_id, *stages, f"gateway: POST {route}")
    asked = [f"{who}: /tinkermesh.v1.Completions/Generate" for who in ("scheduler", "gateway")]
    above = ["scheduler: generation", *asked, f"gateway: POST {route}"]
    told = [f"sampler: {SAMPLER}SampleStream", f"scheduler: {SAMPLER}SampleStream"]
    assert chain(spans, named(spans, f"{SAMPLER}SampleStream", "sampler")) == [*told, *above]
    assert chain(spans, named(spans, "generation.tokenize")) == ["scheduler: generation.tokenize", *above]
    root = named(spans, f"POST {route}", "gateway")
    assert str(root.attributes["tinkermesh.completion_id"]).startswith("chatcmpl-")
    assert root.attributes["tinkermesh.streamed"] is stream
    check_whole(spans)


async def test_a_jobs_tasks_lie_in_the_trace_of_its_post(traced: MeshProcesses, receiver: Receiver) -> None:
    jobs, trace_id = JobClient(traced.base_url, traced.api_key), secrets.token_hex(16)
    body = [{"input": [1, 2], "max_tokens": 3}, {"input": [1, 3], "max_tokens": 3}]
    answer = await jobs.post(body, traceparent=f"00-{trace_id}-{CLIENT_SPAN}-01")
    await jobs.ended(answer.json()["job_id"])
    await jobs.close()
    receiver.wait(lambda spans: sum(s.name == "job_task" and s.trace_id == trace_id for s in spans) == 2)
    spans = receiver.wait_trace(trace_id, "gateway: POST /v1/control/jobs", f"scheduler: {SAMPLER}SampleStream")
    create = "/tinkermesh.v1.Jobs/CreateJob"
    above = [f"scheduler: {create}", f"gateway: {create}", "gateway: POST /v1/control/jobs"]
    tasks = [span for span in spans if span.name == "job_task"]
    for span in tasks:
        assert chain(spans, span) == ["scheduler: job_task", *above]
    assert sorted(span.attributes["task"] for span in tasks) == [0, 1]
    check_whole(spans)


async def test_a_packed_unit_links_the_requests_of_both_tenants(
    traced: MeshProcesses, client: WireClient, receiver: Receiver
) -> None:
    traced.add_key("tml-second-tenant")
    other = WireClient([traced.base_url], "tml-second-tenant")
    models = [await created(client), await created(other)]
    blocking = await created(client)
    traced.inject("trainer", HELD_PASS)
    first = (await client.post("/forward_backward", batch(blocking, 1, seed=1))).json()["request_id"]
    ones = [Traced(client), Traced(other)]
    posts = [
        (await one.post("/forward_backward", batch(m, 1, seed=2))).json() for one, m in zip(ones, models, strict=True)
    ]
    traced.inject("trainer", [])
    for who, made in ((client, first), (client, posts[0]["request_id"]), (other, posts[1]["request_id"])):
        await who.future(made)
    await other.close()
    for one in ones:
        receiver.wait_trace(one.trace_id, *REPORTED)
    receiver.wait(lambda all_spans: any(str(s) == "trainer: trainer.pass" and in_one(s, ones) for s in all_spans))
    spans = [span for one in ones for span in receiver.wait_trace(one.trace_id, *REPORTED)]
    units = [span for span in spans if span.name == "unit"]
    assert len({span.attributes["unit_id"] for span in units}) == 1
    shared = next(span for span in units if len(span.links) == 2)
    (beside,) = [span for span in units if span is not shared]
    submits = {(s.trace_id, s.span_id) for s in spans if (s.service, s.name) == ("scheduler", f"{SCHEDULER}Submit")}
    assert set(shared.links) == submits
    assert beside.links == ((shared.trace_id, shared.span_id),)
    assert beside.trace_id != shared.trace_id
    assert named(spans, "trainer.pass", "trainer").trace_id == shared.trace_id
    for one in ones:
        check_whole(receiver.trace(one.trace_id))


def in_one(span: Span, ones: list[Traced]) -> bool:
    return span.trace_id in {one.trace_id for one in ones}


def test_the_sdk_without_a_traceparent_makes_one_trace_per_post(traced: MeshProcesses, receiver: Receiver) -> None:
    before = len(receiver.spans)
    service = tinker.ServiceClient(base_url=traced.base_url, api_key=traced.api_key)
    training = service.create_lora_training_client(base_model=BASE_MODEL, rank=8).result()
    inputs = {"target_tokens": [2, 3, 4], "weights": [1.0, 1.0, 1.0]}
    datum = tinker.Datum(model_input=tinker.ModelInput.from_ints([1, 2, 3]), loss_fn_inputs=inputs)  # type: ignore[arg-type]
    training.forward_backward([datum], "cross_entropy").result(60)
    training.optim_step(tinker.AdamParams(learning_rate=1e-3)).result(60)
    for post, kind in (("forward_backward", "pass"), ("optim_step", "optim")):
        (root,) = [span for span in receiver.wait(has_root(before, post))[before:] if span.name.endswith(f"/{post}")]
        assert root.parent_id == ""
        mine = receiver.wait_trace(root.trace_id, *REPORTED, f"trainer: trainer.{kind}")
        check_whole(mine)
        work = named(mine, f"trainer.{kind}", "trainer")
        assert chain(mine, work)[-1] == f"gateway: POST /api/v1/{post}"


def has_root(before: int, post: str):
    return lambda spans: any(span.name.endswith(f"/{post}") for span in spans[before:])


async def test_a_poll_is_traced_only_inside_a_trace_of_the_client(client: WireClient, receiver: Receiver) -> None:
    model = await created(client)
    made = (await client.post("/forward_backward", batch(model, 1, seed=1))).json()
    one = Traced(client)
    await one.post("/retrieve_future", {"request_id": made["request_id"]})
    (poll,) = receiver.wait_trace(one.trace_id, "gateway: POST /api/v1/retrieve_future")
    assert poll.parent_id == CLIENT_SPAN


async def test_refused_input_is_one_trace_up_to_its_admission(client: WireClient, receiver: Receiver) -> None:
    model = await created(client)
    one = Traced(client)
    refused = main_path.adam(model, 1, learning_rate="no")
    result = await client.future((await one.post("/optim_step", refused)).json()["request_id"])
    assert result["category"] == "user"
    check_whole(receiver.wait_trace(one.trace_id, "gateway: POST /api/v1/optim_step", f"scheduler: {SCHEDULER}Submit"))


async def test_nothing_but_requests_is_traced(receiver: Receiver) -> None:
    """Over everything this module did: no health checks, reflection, registrations, watches, polls or heartbeats."""
    roots = {span.name for span in receiver.spans if span.parent_id == ""}
    assert roots
    prefixes = ("/api/v1/", "/oai/api/v1/", "/v1/control/")
    assert all(name.partition(" ")[2].startswith(prefixes) for name in roots), roots
    silent = ("health", "eflection", "channelz", "Register", "Watch", "Describe", "Takeover", "heartbeat", "telemetry")
    assert [span.name for span in receiver.spans if any(word in span.name for word in silent)] == []
    assert roots.isdisjoint({"POST /api/v1/retrieve_future", "GET /v1/control/jobs/{job_id}"})


def test_no_key_is_in_any_span_SEC_02(traced: MeshProcesses, receiver: Receiver) -> None:
    assert receiver.raw
    for key in (traced.api_key, "tml-second-tenant"):
        assert not any(key.encode() in export for export in receiver.raw)


async def test_log_lines_of_a_request_carry_its_trace_and_ids(
    traced: MeshProcesses, client: WireClient, receiver: Receiver
) -> None:
    model = await created(client)
    one = Traced(client)
    request_id = await one.run("/forward_backward", batch(model, 1, seed=1))
    receiver.wait_trace(one.trace_id, *REPORTED)
    lines = [line for file in traced.settings.logs.glob("*.log") for line in json_lines(file)]
    mine = [line for line in lines if line.get("trace_id") == one.trace_id]
    assert {line["service"] for line in mine} == {"gateway", "scheduler", "trainer"}
    for line in mine:
        if line["service"] != "trainer":
            assert (line["request_id"], line["model_id"]) == (request_id, model)
            assert line["tenant_id"]
    (unit_id,) = {line["unit_id"] for line in mine if "unit_id" in line}
    assert unit_id


def json_lines(file: Path) -> list[Json]:
    return [json.loads(line) for line in file.read_text().splitlines() if line.startswith("{")]


def test_exporting_services_import_the_sdk(traced: MeshProcesses) -> None:
    """Negative control of the same look at a mesh that does not trace."""
    for name in ("gateway-0", "scheduler-0", "trainer", "sampler"):
        assert "opentelemetry.sdk.trace" in traced.logs(name)


def test_a_collector_that_is_away_delays_nothing(tmp_path: Path) -> None:
    """Work goes on, and every process ends within the flush's bound."""
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_BSP_SCHEDULE_DELAY": "100"}
    with MeshProcesses(tmp_path / "mesh", variables=variables) as mesh:
        answer = httpx.post(
            f"{mesh.base_url}/api/v1/create_session",
            json={"tags": [], "user_metadata": {}, "sdk_version": "0.38.0"},
            headers={"x-api-key": mesh.api_key},
            trust_env=False,
        )
        assert answer.status_code == 200
        children = mesh.mesh.supervisor.children
    assert {child.spec.name: child.process.returncode for child in children if child.process} == {
        child.spec.name: 0 for child in children
    }
