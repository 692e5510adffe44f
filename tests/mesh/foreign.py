"""What one tenant owns, and how another tries to reach it on every route there is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.doubles.fake_trainer import BASE_MODEL
from tests.doubles.job_client import JobClient
from tests.doubles.wire_client import Json, WireClient, batch
from tests.mesh.main_path import accepted, adam, created, sample, saved, snapshot_sampler


@dataclass(frozen=True, slots=True)
class Belongings:
    """One of each kind of id."""

    session: str
    model: str
    future: str
    sample: str
    sampler: str
    checkpoint: str
    snapshot: str
    job: str

    def values(self) -> list[str]:
        shared = [self.session, self.model, self.future, self.sample, self.sampler, self.checkpoint, self.snapshot]
        return [*shared, self.job]


async def belongings(client: WireClient) -> Belongings:
    session = await client.session()
    model = await created(client, session)
    future = (await accepted(client, "/forward_backward", batch(model, 1, seed=1)))["request_id"]
    await client.future(future)
    checkpoint = await saved(client, model, 2, "ck")
    snapshot = await saved(client, model, 3, "snap", "save_weights_for_sampler")
    sampler = await snapshot_sampler(client, session, snapshot)
    sampled = (await accepted(client, "/asample", sample(sampler, 1)))["request_id"]
    await client.future(sampled, protobuf=True)
    jobs = JobClient(client.url, client.api_key)
    job = await jobs.create({"input": [1, 2], "max_tokens": 3})
    await jobs.ended(job)
    await jobs.close()
    return Belongings(session, model, future, sampled, sampler, checkpoint, snapshot, job)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request of a stranger. `ordered`: accepted as a command of the stranger's own, which fails in its turn."""

    body: Json | bytes | None = None
    path: dict[str, str] | None = None
    ordered: bool = False


Attempts = Callable[[Belongings, Belongings], list[Attempt]]
"""(the victim's, the stranger's own) -> attempts"""


@dataclass(frozen=True, slots=True)
class Safe:
    """A route that takes no id of anybody's. `lists`: it answers the caller's own ids, and no other's."""

    why: str
    lists: bool = False


def _checkpoint(theirs: Belongings) -> list[dict[str, str]]:
    return [
        {"run_id": theirs.model, "kind": "weights", "name": "ck"},
        {"run_id": theirs.model, "kind": "sampler_weights", "name": "snap"},
    ]


def _on_checkpoint(body: Json | None = None) -> Attempts:
    return lambda theirs, mine: [Attempt(body, path) for path in _checkpoint(theirs)]


def _on_model(make: Callable[[str], Json | bytes]) -> Attempts:
    return lambda theirs, mine: [Attempt(make(theirs.model))]


def _loads(theirs: Belongings, mine: Belongings) -> list[Attempt]:
    load = {"path": theirs.checkpoint, "optimizer": False}
    token = {"weights_access_token": "tml-nobody"}
    return [
        Attempt({**load, "model_id": theirs.model, "seq_id": 9}),
        Attempt({**load, "model_id": mine.model, "seq_id": 4}, ordered=True),
        Attempt({**load, **token, "model_id": mine.model, "seq_id": 5}, ordered=True),
        Attempt({**load, "path": mine.checkpoint, "session_id": theirs.session, "model_seq_id": 7}),
        Attempt({**load, "session_id": mine.session, "model_seq_id": 7}),
        Attempt({**load, **token, "session_id": mine.session, "model_seq_id": 8}),
    ]


def _creates(theirs: Belongings, mine: Belongings) -> list[Attempt]:
    lora = {"rank": 4}
    return [Attempt({"session_id": theirs.session, "model_seq_id": 5, "base_model": BASE_MODEL, "lora_config": lora})]


def _samplers(theirs: Belongings, mine: Belongings) -> list[Attempt]:
    return [
        Attempt({"session_id": theirs.session, "sampling_session_seq_id": 5, "base_model": BASE_MODEL}),
        Attempt({"session_id": theirs.session, "sampling_session_seq_id": 6, "model_path": mine.snapshot}),
        Attempt({"session_id": mine.session, "sampling_session_seq_id": 5, "model_path": theirs.snapshot}),
    ]


def _futures(theirs: Belongings, mine: Belongings) -> list[Attempt]:
    return [Attempt({"request_id": theirs.future}), Attempt({"request_id": theirs.sample})]


def _copies(theirs: Belongings, mine: Belongings) -> list[Attempt]:
    copy = {"source_path": theirs.checkpoint, "session_id": mine.session, "model_seq_id": 20}
    return [
        Attempt(copy),
        Attempt({**copy, "model_seq_id": 21, "weights_access_token": "tml-nobody"}),
        Attempt({**copy, "source_path": mine.checkpoint, "session_id": theirs.session, "model_seq_id": 22}),
    ]


def _completions(theirs: Belongings, mine: Belongings) -> list[Attempt]:
    target = {"type": "sampling_session", "sampling_session_id": theirs.sampler, "cloned_sampler_id": 0}
    return [Attempt({"target": target, "prev_cursor": 0, "timeout": 0, "retrieved_request_ids": [theirs.sample]})]


OPENAI = "/oai/api/v1"
"""Routes of another surface, by their whole path."""


def _openai_models(theirs: Belongings) -> list[str]:
    return [theirs.snapshot, f"{BASE_MODEL};{theirs.snapshot}", theirs.checkpoint]


def _chats(theirs: Belongings, mine: Belongings) -> list[Attempt]:
    said = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    streams = [False, True]
    return [Attempt({**said, "model": model, "stream": s}) for model in _openai_models(theirs) for s in streams]


def _texts(theirs: Belongings, mine: Belongings) -> list[Attempt]:
    said = {"prompt": [1, 2], "max_tokens": 1}
    return [Attempt({**said, "model": model}) for model in _openai_models(theirs)]


def _jobs(theirs: Belongings, mine: Belongings) -> list[Attempt]:
    reference = {"job_id": theirs.job}
    return [
        Attempt({"continue_from": reference}),
        Attempt({"tasks": [{"continue_from": {**reference, "index": 0}}, {"continue_from": {"job_id": mine.job}}]}),
    ]


def _on_job(theirs: Belongings, mine: Belongings) -> list[Attempt]:
    return [Attempt(None, {"job_id": theirs.job})]


CONTROL = "/v1/control"
JOB = f"{CONTROL}/jobs/{{job_id}}"
CHECKPOINT = "/training_runs/{run_id}/checkpoints/{kind}/{name}"
DOWNLOAD = "/downloads/{run_id}/{kind}/{name}/{version}"
FINISH = {"reason": {"type": "success"}, "detail": None}

# Every route of the gateway. A new one must be added here before it is served.
ROUTES: dict[tuple[str, str], Attempts | Safe] = {
    ("GET", "/healthz"): Safe("says nothing of anybody"),
    ("GET", "/get_server_capabilities"): Safe("pools only"),
    ("POST", "/client/config"): Safe("settings only"),
    ("POST", "/client/dynamic_config"): Safe("settings only"),
    ("POST", "/telemetry"): Safe("dropped"),
    ("POST", "/create_session"): Safe("makes one of the caller's own"),
    ("POST", "/auth/token"): Safe("for the credential that is presented"),
    ("GET", "/auth/apikey/me"): Safe("the credential that is presented"),
    ("DELETE", "/auth/apikey/me"): Safe("the credential that is presented"),
    ("GET", "/audit"): Safe("404"),
    ("GET", "/billing/usage/events"): Safe("404"),
    ("GET", "/billing/usage/checkpoints/current"): Safe("404"),
    ("GET", "/sessions/{session_id}/trace_export"): Safe("404"),
    ("POST", "/create_custom_loss"): Safe("404"),
    ("GET", "/training_runs"): Safe("lists the caller's own", lists=True),
    ("GET", "/checkpoints"): Safe("lists the caller's own", lists=True),
    ("GET", "/sessions"): Safe("lists the caller's own", lists=True),
    ("POST", "/sessions/search"): Safe("finds the caller's own", lists=True),
    ("GET", f"{DOWNLOAD}/files/{{file}}"): Safe("takes a signed link, no key: tests of downloads"),
    ("GET", f"{DOWNLOAD}/archive"): Safe("takes a signed link, no key: tests of downloads"),
    ("GET", "/console"): Safe("a page that is the same for everybody"),
    ("GET", "/console/"): Safe("leads to that page"),
    ("GET", "/console/static/{file}"): Safe("files of that page"),
    ("GET", "/console/api/runs"): Safe("lists the caller's own", lists=True),
    ("GET", "/console/api/state"): Safe("names the caller's own, counts everybody's", lists=True),
    ("GET", "/console/api/runs/{run_id}"): lambda theirs, mine: [Attempt(None, {"run_id": theirs.model})],
    ("POST", "/session_heartbeat"): lambda theirs, mine: [Attempt({"session_id": theirs.session})],
    ("POST", "/sessions/{session_id}/finish"): lambda theirs, mine: [Attempt(FINISH, {"session_id": theirs.session})],
    ("GET", "/sessions/{session_id}"): lambda theirs, mine: [Attempt(None, {"session_id": theirs.session})],
    ("PUT", "/sessions/{session_id}/project"): lambda theirs, mine: [
        Attempt({"project_id": "p"}, {"session_id": theirs.session})
    ],
    ("POST", "/create_model"): _creates,
    ("POST", "/get_info"): _on_model(lambda model: {"model_id": model}),
    ("POST", "/unload_model"): _on_model(lambda model: {"model_id": model}),
    ("POST", "/forward_backward"): _on_model(lambda model: batch(model, 9, seed=1)),
    ("POST", "/forward"): _on_model(lambda model: batch(model, 9, seed=1)),
    ("POST", "/optim_step"): _on_model(lambda model: adam(model, 9)),
    ("POST", "/save_weights"): _on_model(lambda model: {"model_id": model, "seq_id": 9, "path": "stolen"}),
    ("POST", "/save_weights_external"): _on_model(lambda model: {"model_id": model, "seq_id": 9, "path": "stolen"}),
    ("POST", "/save_weights_for_sampler"): _on_model(lambda model: {"model_id": model, "seq_id": 9, "path": "stolen"}),
    ("POST", "/load_weights"): _loads,
    ("POST", "/copy_weights"): _copies,
    ("POST", "/weights_info"): lambda theirs, mine: [
        Attempt({"tinker_path": theirs.checkpoint}),
        Attempt({"tinker_path": theirs.snapshot, "weights_access_token": "tml-nobody"}),
    ],
    ("POST", "/create_sampling_session"): _samplers,
    ("POST", "/join_sampling_session"): lambda theirs, mine: [Attempt({"sampling_session_id": theirs.sampler})],
    ("GET", "/samplers/{sampling_session_id}"): lambda theirs, mine: [
        Attempt(None, {"sampling_session_id": theirs.sampler})
    ],
    ("POST", "/asample"): lambda theirs, mine: [Attempt(sample(theirs.sampler, 9))],
    ("POST", f"{OPENAI}/chat/completions"): _chats,
    ("POST", f"{OPENAI}/completions"): _texts,
    ("GET", f"{OPENAI}/models"): Safe("lists base models", lists=True),
    ("GET", f"{OPENAI}/models/{{model:path}}"): lambda theirs, mine: [
        Attempt(None, {"model": model}) for model in _openai_models(theirs)
    ],
    ("POST", "/retrieve_future"): _futures,
    ("POST", "/cancel_future"): _futures,
    ("POST", "/retrieve_futures"): _completions,
    ("GET", "/training_runs/{run_id}"): lambda theirs, mine: [Attempt(None, {"run_id": theirs.model})],
    ("GET", "/training_runs/{run_id}/checkpoints"): lambda theirs, mine: [Attempt(None, {"run_id": theirs.model})],
    ("DELETE", CHECKPOINT): _on_checkpoint(),
    ("POST", f"{CHECKPOINT}/publish"): _on_checkpoint(),
    ("DELETE", f"{CHECKPOINT}/publish"): _on_checkpoint(),
    ("PUT", f"{CHECKPOINT}/ttl"): _on_checkpoint({"ttl_seconds": 1}),
    ("GET", f"{CHECKPOINT}/external_weights_urls"): _on_checkpoint(),
    ("GET", f"{CHECKPOINT}/archive"): _on_checkpoint(),
    ("POST", f"{CONTROL}/jobs"): _jobs,
    ("GET", f"{CONTROL}/jobs"): Safe("lists the caller's own", lists=True),
    ("GET", JOB): _on_job,
    ("DELETE", JOB): _on_job,
    ("POST", f"{JOB}/cancel"): _on_job,
    ("GET", f"{JOB}/results"): _on_job,
    ("GET", f"{JOB}/events"): _on_job,
}
