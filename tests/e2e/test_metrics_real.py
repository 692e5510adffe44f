"""Metrics of the real engines: Megatron's trainer, and vLLM's own beside the sampler's."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.doubles.eventually import until
from tests.doubles.mesh import RealMeshProcesses
from tests.doubles.prometheus import metrics_of
from tests.doubles.scrape import scrape
from tests.doubles.wire_client import WireClient, batch
from tests.mesh import main_path
from tools.dashboard import dashboard
from tools.metrics_doc import SECTIONS

pytestmark = [pytest.mark.engine, pytest.mark.timeout(280)]

LOOKED_SECONDS = 60.0


async def train_and_sample(mesh: RealMeshProcesses) -> tuple[str, str]:
    """Answers the model and the name of its snapshot."""
    client = WireClient([mesh.base_url], mesh.api_key)
    session = await client.session()
    create = {**main_path.create_model(session, train_unembed=False), "base_model": mesh.settings.model_name}
    model = str((await main_path.done(client, "/create_model", create))["model_id"])
    await main_path.done(client, "/forward_backward", batch(model, 1, seed=1))
    await main_path.done(client, "/optim_step", main_path.adam(model, 2))
    snapshot = await main_path.saved(client, model, 3, "of-metrics", "save_weights_for_sampler")
    sampler = await main_path.snapshot_sampler(client, session, snapshot)
    made = await main_path.accepted(client, "/asample", main_path.sample(sampler, 1))
    await client.future(made["request_id"])
    await client.close()
    return model, "of-metrics"


def test_real_engines_count_what_they_did_and_name_nobody(real_mesh: RealMeshProcesses) -> None:
    model, name = asyncio.run(train_and_sample(real_mesh))
    trainer = until(lambda: scrape(real_mesh, "trainer"), LOOKED_SECONDS)
    assert trainer.total("tinkermesh_trainer_units_total", kind="pass", outcome="ok") >= 1
    assert trainer.total("tinkermesh_trainer_publications_total", kind="sampler_weights", outcome="ok") >= 1
    assert trainer.total("tinkermesh_trainer_slots") == real_mesh.settings.slots
    assert trainer.total("tinkermesh_trainer_slots", state="loaded") >= 1
    sampler = scrape(real_mesh, "sampler")
    assert sampler.total("tinkermesh_sampler_adapter_loads_total", outcome="ok") >= 1
    assert sampler.total("tinkermesh_sampler_generated_tokens_total") >= 1
    assert sampler.total("vllm:generation_tokens_total") >= 1
    declared = {one.name for section in SECTIONS.values() for one in section}
    for found in (trainer, sampler):
        assert {family for family in found.families if not family.startswith("vllm:")} <= declared
        for word in (
            model,
            model.split(":")[0],
            name,
            str(real_mesh.settings.model),
            str(real_mesh.settings.state_dir),
        ):
            assert word not in found.text


def test_the_dashboard_names_metrics_this_vllm_has(real_mesh: RealMeshProcesses) -> None:
    named = {name for name in metrics_of(json.dumps(dashboard())) if name.startswith("vllm:")}
    assert named
    assert named - scrape(real_mesh, "sampler").families == set()
