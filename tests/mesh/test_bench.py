"""`tinkermesh bench` measures a running mesh, counts what fails, and leaves nothing behind."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from services.local import cli
from tests.doubles.admin import models
from tests.doubles.eventually import until
from tests.doubles.mesh import MeshProcesses
from tests.mesh.doctor import clean

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(180)]
SMALL = ("--seconds", "0.5", "--clients", "2", "--datums", "3", "--tokens", "21", "--max-tokens", "5")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    clean(monkeypatch)


def bench(mesh: MeshProcesses, *arguments: str) -> Result:
    return CliRunner().invoke(cli.app, ["bench", *arguments, "--state-dir", str(mesh.settings.state_dir)])


def figures(result: Result) -> dict[str, dict[str, Any]]:
    return {one["op"]: one for one in json.loads(result.stdout)["figures"]}


def test_its_figures_belong_together_and_nothing_is_left(mesh: MeshProcesses) -> None:
    done = bench(mesh, *SMALL, "--json")
    assert done.exit_code == 0, done.output + done.stderr
    found = figures(done)
    assert set(found) == {"forward_backward", "optim_step", "sample"}
    for one in found.values():
        assert one["succeeded"] > 0 and one["failed"] == 0
        assert 0 < one["p50_ms"] <= one["p99_ms"]
    trained, sampled = found["forward_backward"], found["sample"]
    assert trained["succeeded"] == found["optim_step"]["succeeded"]
    assert trained["tokens_per_second"] == pytest.approx(trained["ops_per_second"] * 3 * 20, rel=0.01)
    assert 0 < sampled["tokens_per_second"] <= sampled["ops_per_second"] * 5 * 1.01  # a sequence may end early
    until(lambda: not models(mesh.scheduler), 30.0)
    listed = CliRunner().invoke(cli.app, ["checkpoints", "list", "--json", "--state-dir", str(mesh.settings.state_dir)])
    assert json.loads(listed.stdout)["checkpoints"] == []


def test_what_fails_is_counted_and_told_and_ends_with_1(mesh: MeshProcesses) -> None:
    mesh.inject("trainer", [{"kind": "pass", "action": "fail_user", "times": 0}])
    try:
        done = bench(mesh, *SMALL, "--no-samples", "--json")
        told = bench(mesh, *SMALL, "--no-samples")
    finally:
        mesh.inject("trainer", [])
    assert done.exit_code == told.exit_code == 1
    found = figures(done)
    assert set(found) == {"forward_backward", "optim_step"}
    assert found["forward_backward"]["failed"] == 2 and found["forward_backward"]["succeeded"] == 0
    assert f"forward_backward: {found['forward_backward']['first_failure'][:20]}" in told.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--model", "nobody/nothing"), "there are: tinkermesh/double"),
        (("--tokens", "30000"), "exceed the 2048"),
        (("--tokens", "8", "--max-tokens", "8"), "no room for a prompt"),
    ],
)
def test_a_load_that_does_not_fit_is_refused_before_it_begins(
    mesh: MeshProcesses, arguments: tuple[str, ...], says: str
) -> None:
    refused = bench(mesh, *arguments)
    assert refused.exit_code == 1 and says in refused.stderr


def test_a_time_runs_until_the_result_is_there(mesh: MeshProcesses) -> None:
    """Engines that wait before they work: no operation is told to be faster than that."""
    for engine, kind in (("trainer", "pass"), ("sampler", "sample")):
        mesh.inject(engine, [{"kind": kind, "action": "delay_before", "seconds": 0.3, "times": 0}])
    try:
        found = figures(bench(mesh, *SMALL, "--json"))
    finally:
        for engine in ("trainer", "sampler"):
            mesh.inject(engine, [])
    assert {op for op, one in found.items() if one["p50_ms"] >= 300} == {"forward_backward", "optim_step", "sample"}
