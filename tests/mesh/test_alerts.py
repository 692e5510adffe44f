"""Every alert and every panel, evaluated by a real Prometheus over scrapes of a running mesh; faults turn alerts on."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.doubles.eventually import until
from tests.doubles.fake_trainer import POOL
from tests.doubles.grpcurl import run
from tests.doubles.mesh import MeshProcesses
from tests.doubles.prometheus import Prometheus, as_number, clauses, impatient, metrics_of, prometheus, required
from tests.mesh.scraped_job import Job
from tools import dashboard
from tools.metrics_doc import SECTIONS

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(280)]

FILES = Path(__file__).resolve().parents[2] / "charts" / "tinkermesh" / "files"
RULES: dict[str, Any] = yaml.safe_load((FILES / "alerts.yaml").read_text())
ALERTS = {rule["alert"]: rule["expr"] for group in RULES["groups"] for rule in group["rules"]}
PANELS = {
    f"{panel['title']}: {target['legendFormat']}": target["expr"].replace("$__rate_interval", "1m")
    for panel in dashboard.dashboard()["panels"]
    for target in panel.get("targets", ())
}
DECLARED = {one.name for section in SECTIONS.values() for one in section}
SEEN_SECONDS = 90.0
FAULT_SECONDS = 90.0


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeshProcesses]:
    """Trainers and samplers count as lost after five silent seconds; the doubles give a sign every two."""
    required("prometheus")
    variables = {"TINKERMESH_SCHEDULER_REGISTRATION_SECONDS": "5"}
    with MeshProcesses(tmp_path_factory.mktemp("alerts"), variables=variables) as running:
        yield running


@pytest.fixture(scope="module")
def server(mesh: MeshProcesses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """It has seen every process twice, work in between."""
    place = tmp_path_factory.mktemp("prometheus")
    with prometheus(place, mesh.settings.metrics_targets, impatient(RULES)) as made:
        until(lambda: made.scraped() == len(mesh.mesh.addresses.metrics), SEEN_SECONDS)
        asyncio.run(Job(mesh).run())
        until(lambda: made.query("rate(tinkermesh_sampler_samples_total[1m]) > 0"), SEEN_SECONDS)
        yield made


@pytest.mark.parametrize("name", ALERTS)
def test_each_clause_of_an_alert_is_decided_by_what_is_scraped(name: str, server: Prometheus) -> None:
    """Written as a number it is 0 or 1: an alert over series that do not exist could never fire."""
    for clause in clauses(ALERTS[name]):
        if clause.startswith("absent("):
            for part in clause.split(" or "):
                assert part.startswith("absent(")
                assert until(lambda part=part: server.query(part[7:-1]), SEEN_SECONDS), part
        else:
            assert as_number(clause) != clause, f"{clause} compares nothing"
            found = until(lambda clause=clause: server.query(as_number(clause)), SEEN_SECONDS)
            assert {one["value"][1] for one in found} <= {"0", "1"}, clause
    server.query(ALERTS[name])


@pytest.mark.parametrize("name", [name for name, expression in PANELS.items() if "vllm:" not in expression])
def test_each_panel_draws_something(name: str, server: Prometheus) -> None:
    assert until(lambda: server.query(PANELS[name]), SEEN_SECONDS)


def test_a_metric_that_nobody_tells_would_be_seen(server: Prometheus) -> None:
    """The control of the tests above."""
    assert server.query(as_number("max by (pool) (tinkermesh_pool_no_such_thing) > 0")) == []
    assert metrics_of('max(tinkermesh_pool_no_such_thing{code="x"})') - DECLARED
    with pytest.raises(AssertionError):
        server.query("max by (pool (tinkermesh_pool_slots)")


FAULTS = {
    "trainer": "TinkermeshTrainerLost",
    "sampler": "TinkermeshSamplerMissing",
    "gateway-0": "TinkermeshServiceMissing",
}


def test_processes_that_are_stopped_turn_their_alerts_on_and_off_again(mesh: MeshProcesses, server: Prometheus) -> None:
    """SIGSTOP: they keep their connections and answer nobody. One after the other: each brings its own alert."""
    alerts = set(FAULTS.values())
    until(lambda: not alerts & server.firing(), FAULT_SECONDS)
    on: set[str] = set()
    try:
        for process, alert in FAULTS.items():
            until(lambda alert=alert: alert not in server.firing(), FAULT_SECONDS)
            mesh.kill(process, signal.SIGSTOP)
            on.add(alert)
            until(lambda: on <= server.firing(), FAULT_SECONDS)
    finally:
        for process in FAULTS:
            mesh.kill(process, signal.SIGCONT)
    until(lambda: not alerts & server.firing(), FAULT_SECONDS)


def test_a_drained_trainer_turns_its_alert_on_and_off_again(mesh: MeshProcesses, server: Prometheus) -> None:
    def call(method: str) -> None:
        body = json.dumps({"pool": POOL, "trainer_id": "trainer-double"})
        done = run(f"grpcurl -plaintext -d '{body}' {mesh.scheduler} tinkermesh.v1.Admin/{method}", {})
        assert done.returncode == 0, done.stderr

    call("DrainTrainer")
    try:
        until(lambda: "TinkermeshTrainerPaused" in server.firing(), FAULT_SECONDS)
    finally:
        call("ResumeTrainer")
    until(lambda: "TinkermeshTrainerPaused" not in server.firing(), FAULT_SECONDS)
