"""The main path on real engines: Megatron trains, vLLM samples, both on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.doubles.admin import running_samples
from tests.doubles.eventually import eventually
from tests.doubles.mesh import RealMeshProcesses
from tests.doubles.scenario import start_scenario
from tests.doubles.scenario_checks import check_scenario, difference
from tests.doubles.sdk_matrix import OLDEST, interpreter
from tests.doubles.wire_client import WireClient
from tests.evidence.table import Claim, Measurements
from tests.mesh.main_path import accepted, base_sampler, done, sample

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]
TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def report(real_mesh: RealMeshProcesses, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("scenario")
    return start_scenario(directory, real_mesh.environment, real_mesh.settings.model_name).report(240)


def test_sdk_0_38_runs_the_main_path_on_real_engines_API_01(report: dict[str, Any]) -> None:
    check_scenario(report, vocab=512, tolerance=TOLERANCE)


def test_sampler_and_trainer_agree_on_the_same_snapshot(report: dict[str, Any], measured: Measurements) -> None:
    """Prompt logprobs of vLLM against the trainer's forward; the base model is the negative control."""
    trainer = [report["saves"]["trainer_logprobs"]]
    gaps = {name: difference([report["sampling"][name]["prompt"][1:]], trainer) for name in report["sampling"]}
    for name in ("named", "unnamed"):
        measured(
            Claim.SAMPLER, f"whole mesh, {name} snapshot", gaps[name], within=TOLERANCE, the_base_model=gaps["base"]
        )
    assert gaps["base"] > 10 * TOLERANCE


def test_resume_with_optimizer_is_bitwise_CKPT_07(report: dict[str, Any], measured: Measurements) -> None:
    resumed = report["resumed"]
    assert resumed["with_optimizer"] == resumed["original"]
    measured(
        Claim.RESUME,
        "whole mesh: logprobs after one more step",
        difference(resumed["with_optimizer"], resumed["original"]),
        within=0.0,
        weights_only=difference(resumed["weights_only"], resumed["original"]),
    )


def test_sdk_0_26_runs_the_main_path_on_real_engines_API_01(real_mesh: RealMeshProcesses, tmp_path: Path) -> None:
    python = interpreter(OLDEST)
    name = real_mesh.settings.model_name
    report = start_scenario(tmp_path, real_mesh.environment, name, "--rounds", "1", python=python).report(240)
    check_scenario(report, vocab=512, tolerance=TOLERANCE)


def test_kill_of_gateways_and_schedulers_keeps_the_real_job_GAP_01(
    real_mesh: RealMeshProcesses, report: dict[str, Any], tmp_path: Path
) -> None:
    """As in tests/mesh, with real numbers: within tolerance of the undisturbed run."""
    run = start_scenario(tmp_path, real_mesh.environment, real_mesh.settings.model_name)
    for stage, name in zip(("created", "chunked", "round 1", "round 2"), _parts(real_mesh), strict=True):
        run.wait_mark(stage, 120)
        real_mesh.kill(name)
        real_mesh.wait_restarted(name, 1)
    disturbed = run.report(240)
    for left, right in zip(disturbed["rounds"], report["rounds"], strict=True):
        assert difference(left["logprobs"], right["logprobs"]) <= TOLERANCE
    assert difference(disturbed["resumed"]["original"], report["resumed"]["original"]) <= TOLERANCE


def _parts(mesh: RealMeshProcesses) -> list[str]:
    gateways, schedulers = mesh.names("gateway"), mesh.names("scheduler")
    return [gateways[0], schedulers[0], gateways[1], schedulers[1]]


async def test_kill_of_the_sampler_in_the_middle_of_a_sample_loses_nothing_SAMP_10(
    real_mesh: RealMeshProcesses,
) -> None:
    """The supervisor starts it again, the sample runs there, with the tokens that its seed says."""
    client = WireClient([real_mesh.base_url], real_mesh.api_key)
    sampler = await base_sampler(client, await client.session(), base_model=real_mesh.settings.model_name)
    body = sample(sampler, 1, n=4, tokens=1500)
    body["sampling_params"] |= {"seed": 5, "stop": []}
    restarts = real_mesh.restarts("sampler")
    made = await accepted(client, "/asample", body)
    address = real_mesh.mesh.addresses.sampler
    await eventually(lambda: running_samples(address) > 0)
    real_mesh.kill("sampler")
    disturbed = await client.future(made["request_id"], seconds=240)  # a real engine starts, perhaps on a busy machine
    assert "error" not in disturbed, disturbed
    assert real_mesh.restarts("sampler") == restarts + 1
    plain = await done(client, "/asample", {**body, "seq_id": 2})
    tokens = [[one["tokens"] for one in answer["sequences"]] for answer in (disturbed, plain)]
    assert tokens[0] == tokens[1]
    assert [len(one) for one in tokens[0]] == [1500] * 4
    await client.close()
