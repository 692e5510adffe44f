"""A real mesh of a prefill and a decode sampler, seen by its clients, its operator and its engines."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import numpy as np
import openai
import tinker
from tinkermesh.v1 import admin_pb2 as admin
from tinkermesh.v1 import admin_pb2_grpc as admin_grpc
from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1.types_pb2 import AdapterRef
from transformers import AutoTokenizer

from tests.contract.sampler.client import SamplerClient, Sequence, body
from tests.doubles.admin import running_samples
from tests.doubles.eventually import until
from tests.doubles.mesh import RealMeshProcesses
from tests.doubles.scrape import scrape
from tests.doubles.sdk_close import close
from tests.doubles.sdk_datums import supervised

PREFILL, DECODE = "sampler-prefill", "sampler-decode"
READY_SECONDS = 240.0


@dataclass(frozen=True)
class PdMesh:
    """`path`: a snapshot after a few real steps, which the samplers know as `adapter`."""

    mesh: RealMeshProcesses
    service: Any
    training: Any
    client: openai.OpenAI
    tokenizer: Any
    path: str
    adapter: AdapterRef

    @property
    def base(self) -> str:
        return self.mesh.settings.model_name

    def engines(self) -> dict[str, admin.EngineReport]:
        """By role, as ListEngines says."""
        with grpc.insecure_channel(self.mesh.scheduler) as channel:
            reply = admin_grpc.AdminStub(channel).ListEngines(admin.ListEnginesRequest(), timeout=20)
        return {engine.role: engine for engine in reply.engines}

    def adapters(self) -> dict[str, set[str]]:
        """role -> names of what is loaded."""
        return {role: {one.name for one in engine.adapters} for role, engine in self.engines().items()}

    def unload(self, name: str) -> None:
        """On both samplers, which have it. It is what an operator does."""
        with grpc.insecure_channel(self.mesh.scheduler) as channel:
            request = admin.AdminUnloadAdapterRequest(pool=self.engines()["decode"].pool, name=name)
            reply = admin_grpc.AdminStub(channel).UnloadAdapter(request, timeout=20)
        assert [one.changed for one in reply.samplers] == [True, True], reply

    def metric(self, process: str, name: str, **labels: str) -> float:
        return scrape(self.mesh, process).total(name, **labels)

    def wait_paired(self) -> None:
        """Until the schedulers know two samplers that may work together."""
        until(lambda: {role for role, one in self.engines().items() if one.partners} == {"prefill", "decode"}, 60.0)

    def idle(self) -> bool:
        """Nothing is counted as running or waiting: neither by the engines nor by the scheduler."""
        engines = self.engines().values()
        addresses = self.mesh.mesh.addresses.samplers
        return not sum(one.running + one.waiting for one in engines) + sum(map(running_samples, addresses))

    def whole(self, prompt: list[int], length: int, adapter: AdapterRef | None = None) -> Sequence:
        """What one engine answers for all of it: the prefill sampler is asked past the router, without a leg."""

        async def ask() -> Sequence:
            asked = body(prompt, max_tokens=length, temperature=0.0)
            request = pb.SampleRequest(request_id=f"whole.{uuid4().hex}", adapter=adapter, body=asked)
            async with SamplerClient(self.mesh.mesh.addresses.sampler) as client:
                return Sequence.of((await client.stub.Sample(request, timeout=READY_SECONDS)).result.sequences[0])

        return asyncio.run(ask())

    def sample(self, path: str, prompt: list[int], length: int, **parameters: Any) -> Any:
        """A future. `path` "" = base model; greedy unless `parameters` say otherwise."""
        target = {"model_path": path} if path else {"base_model": self.base}
        count = parameters.pop("count", 1)
        chosen = tinker.types.SamplingParams(**{"max_tokens": length, "temperature": 0.0, "seed": 3, **parameters})
        sampler = self.service.create_sampling_client(**target).result()
        return sampler.sample(tinker.types.ModelInput.from_ints(prompt), count, chosen)

    def completed(self, model: str, prompt: str, **body: Any) -> Any:
        extra = {"return_token_ids": True}
        return self.client.completions.create(
            **{"model": model, "prompt": prompt, "temperature": 0, "extra_body": extra, **body}
        )


@contextmanager
def running_pd_mesh(directory: Path, model: Path) -> Iterator[PdMesh]:
    with RealMeshProcesses(directory, model, prefill_decode=True) as mesh:
        service = tinker.ServiceClient(base_url=mesh.base_url, api_key=mesh.api_key)
        name = mesh.settings.model_name
        training = service.create_lora_training_client(base_model=name, rank=8, seed=5).result()
        path = snapshot(training, "first")
        url = f"{mesh.base_url}/oai/api/v1"
        with openai.OpenAI(base_url=url, api_key=mesh.api_key, max_retries=0) as client:
            tokenizer = AutoTokenizer.from_pretrained(name)
            made = PdMesh(mesh, service, training, client, tokenizer, path, AdapterRef())
            made.wait_paired()
            made.sample(path, [1, 2, 3], 2).result()
            (loaded,) = made.engines()["decode"].adapters
            made.adapter.CopyFrom(AdapterRef(name=loaded.name, path=loaded.path))
            yield made
        close(service)


def snapshot(training: Any, name: str) -> str:
    """Path of another one, after two steps that no one else takes."""
    for step in range(2):
        tokens = np.random.default_rng((step, *name.encode())).integers(2, 512, 65)
        training.forward_backward([supervised(tokens.tolist())], "cross_entropy").result()
        training.optim_step(tinker.types.AdamParams(learning_rate=5e-3, eps=1e-8)).result()
    return str(training.save_weights_for_sampler(name).result().path)
