"""A job with every kind of work in it, for tests that look at metrics."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from tests.doubles.fake_trainer import BASE_MODEL
from tests.doubles.job_client import JobClient
from tests.doubles.mesh import MeshProcesses
from tests.doubles.wire_client import WireClient, batch
from tests.mesh import main_path


@dataclass(slots=True)
class Job:
    """Every kind of work, once; `ids` are all that a metric must not say."""

    mesh: MeshProcesses
    key: str = field(default_factory=lambda: f"tml-{secrets.token_hex(16)}")
    ids: set[str] = field(default_factory=set)

    async def run(self) -> None:
        self.ids |= {self.key, self.key.removeprefix("tml-"), self.mesh.add_key(self.key), self.mesh.api_key}
        client = WireClient([self.mesh.base_url], self.key)
        session = await client.session()
        model = await main_path.created(client, session)
        await main_path.done(client, "/forward_backward", batch(model, 1, seed=1))
        await main_path.done(client, "/optim_step", main_path.adam(model, 2))
        await main_path.saved(client, model, 3, "a-name-of-mine")
        snapshot = await main_path.saved(client, model, 4, "another-name", "save_weights_for_sampler")
        sampler = await main_path.snapshot_sampler(client, session, snapshot)
        made = await main_path.accepted(client, "/asample", main_path.sample(sampler, 1))
        await client.future(made["request_id"])
        await client.post(f"/no/such/{secrets.token_hex(8)}", {})
        await client.post("/retrieve_future", {"request_id": "nonsense"})
        await client.post("/optim_step", main_path.adam(model.replace(":train:", ":train:9"), 1))
        await main_path.outcome(client, "/optim_step", main_path.adam(model, 5, learning_rate="high"))
        await client.close()
        self.ids |= {session, model, sampler, made["request_id"], "a-name-of-mine", "another-name"}
        self.ids |= {await self._completion(), await self._batch(), "/no/such", str(self.mesh.settings.state_dir)}

    async def _completion(self) -> str:
        """Of the OpenAI routes; answers its id."""
        jobs = JobClient(self.mesh.base_url, self.key)
        body = {"model": BASE_MODEL, "prompt": "the people", "max_tokens": 4}
        headers = {"Authorization": f"Bearer {self.key}"}
        answer = await jobs.http.post("/oai/api/v1/completions", json=body, headers=headers)
        await jobs.close()
        return str(answer.json()["id"])

    async def _batch(self) -> str:
        jobs = JobClient(self.mesh.base_url, self.key)
        job_id = await jobs.create({"input": [5, 6], "max_tokens": 4})
        await jobs.ended(job_id)
        await jobs.close()
        return job_id
