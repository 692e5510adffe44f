"""What the unmodified SDK makes of 429: it waits, sends again, and nothing is lost or run twice."""

from __future__ import annotations

import pytest
import tinker
from tinker import types

from tests.doubles.eventually import until
from tests.doubles.fake_trainer import BASE_MODEL
from tests.doubles.mesh import MeshProcesses
from tests.doubles.sdk_close import close
from tests.doubles.sdk_datums import supervised
from tests.mesh.test_keys import command, created

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(180)]


def service_of(mesh: MeshProcesses, *quotas: str) -> tinker.ServiceClient:
    """Of a new tenant with these quotas."""
    secret, _, tenant = created(command(mesh, "keys", "create"))
    command(mesh, "tenants", "set", tenant, *quotas)
    return tinker.ServiceClient(base_url=mesh.base_url, api_key=secret)


def refusals(mesh: MeshProcesses, quota: str) -> int:
    """How many audit lines name it."""
    return sum(mesh.logs(name).count(f"busy: {quota}") for name in mesh.names("gateway"))


def hold(mesh: MeshProcesses, engine: str, kind: str) -> None:
    mesh.inject(engine, [{"kind": kind, "action": "hold_before", "times": 0}])


def test_samples_above_the_quota_wait_by_the_sdks_own_back_pressure_SEC_10_SAMP_12(mesh: MeshProcesses) -> None:
    service = service_of(mesh, "--samples", "2")
    sampler = service.create_sampling_client(base_model=BASE_MODEL).result()
    prompt, parameters = types.ModelInput.from_ints([1, 2, 3]), types.SamplingParams(max_tokens=2, temperature=1.0)
    before, refused = len(mesh.journal("sampler")), refusals(mesh, "quota samples")
    hold(mesh, "sampler", "sample")
    futures = [sampler.sample(prompt, 1, parameters) for _ in range(6)]
    until(lambda: refusals(mesh, "quota samples") > refused, 60)
    mesh.inject("sampler", [])
    answers = [future.result(90) for future in futures]
    assert len({answer.sequences[0].sequence_id for answer in answers}) == 6
    assert len([entry for entry in mesh.journal("sampler")[before:] if entry["kind"] == "sample"]) == 6
    close(service)


def test_training_commands_above_the_quota_are_sent_again_and_run_once_SEC_10(mesh: MeshProcesses) -> None:
    service = service_of(mesh, "--open-futures", "1")
    training = service.create_lora_training_client(base_model=BASE_MODEL, rank=8).result()
    before = len([entry for entry in mesh.journal() if entry["kind"] == "pass"])
    refused = refusals(mesh, "quota open_futures")
    hold(mesh, "trainer", "pass")
    futures = [training.forward_backward([supervised([1, 2, 3])], "cross_entropy") for _ in range(3)]
    step = training.optim_step(types.AdamParams(learning_rate=1e-3))
    until(lambda: refusals(mesh, "quota open_futures") > refused, 60)
    mesh.inject("trainer", [])
    assert all(future.result(90).metrics["loss:sum"] > 0 for future in futures)
    assert step.result(90) is not None
    passes = [entry for entry in mesh.journal() if entry["kind"] == "pass"][before:]
    assert sum(len(entry["datums"]) for entry in passes) == 3, "each batch ran once"
    close(service)
