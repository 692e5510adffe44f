"""A whole mesh with mutual TLS between its services: everything works, and nobody without a certificate gets in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.common.model_files import pool_name
from tests.doubles.certificates import Authority
from tests.doubles.fake_trainer import BASE_MODEL
from tests.doubles.mesh import MeshProcesses

ROOT = Path(__file__).resolve().parent.parent.parent
TRAIN = ROOT / "charts" / "tinkermesh" / "files" / "train_one_step.py"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[MeshProcesses]:
    """Children inherit the variables, the supervisor's own probes read them too."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in authority.issue("mesh").environment().items():
            patch.setenv(name, value)
        with MeshProcesses(tmp_path_factory.mktemp("mesh"), schedulers=2) as running:
            yield running


def run(mesh: MeshProcesses, tls: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    """With exactly the variables `tls`."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("TINKERMESH_TLS_")}
    environment = {
        **plain,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'protos'}",
        "GATEWAY": mesh.base_url,
        "SCHEDULER": mesh.mesh.addresses.schedulers[0],
        "POOL": pool_name(BASE_MODEL),
        "SAMPLES": "true",
        "TIMEOUT_SECONDS": "20",
        **tls,
    }
    return subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def probe(mesh: MeshProcesses, tls: dict[str, str], address: str) -> subprocess.CompletedProcess[str]:
    return run(mesh, tls, "-m", "services.common.probe", address)


def test_the_mesh_trains_and_samples(mesh: MeshProcesses, authority: Authority) -> None:
    done = run(mesh, authority.issue("operator").environment(), str(TRAIN))
    assert done.returncode == 0, done.stderr
    assert "trains and samples" in done.stdout


def test_every_service_refuses_a_caller_without_a_certificate(mesh: MeshProcesses, authority: Authority) -> None:
    addresses = mesh.mesh.addresses
    shown = authority.issue("prober").environment()
    for address in (*addresses.schedulers, *addresses.trainers, addresses.sampler):
        assert probe(mesh, shown, address).returncode == 0, address
        assert "UNAVAILABLE" in probe(mesh, {}, address).stderr, address


def test_the_log_says_why_an_expired_certificate_was_refused(mesh: MeshProcesses, authority: Authority) -> None:
    done = probe(mesh, authority.issue("old", days=-1).environment(), mesh.mesh.addresses.schedulers[0])
    assert done.returncode == 1
    log = (mesh.settings.logs / "scheduler-0.log").read_text()
    assert "certificate has expired" in log


def test_grpcurl_with_the_meshs_certificate_is_admitted_as_docs_install_says(
    mesh: MeshProcesses, authority: Authority
) -> None:
    files = authority.issue("grpcurl")
    shown = ["-cacert", str(files.ca), "-cert", str(files.cert), "-key", str(files.key), "-authority", "tinkermesh"]
    address = mesh.mesh.addresses.schedulers[0]
    command = [str(Path(sys.executable).parent / "grpcurl"), *shown, address, "grpc.health.v1.Health/Check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert "SERVING" in done.stdout, done.stderr
