"""What `helm test` runs, against a mesh of real processes with doubled engines."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tinkermesh.v1 import tenants_pb2 as pb
from tinkermesh.v1.tenants_pb2_grpc import TenantsStub

from services.common.grpc_channel import blocking_channel
from services.common.model_files import pool_name
from tests.chart.helm import CHART, ROOT
from tests.doubles.fake_trainer import BASE_MODEL
from tests.doubles.mesh import MeshProcesses

SCRIPT = CHART / "files" / "train_one_step.py"


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeshProcesses]:
    with MeshProcesses(tmp_path_factory.mktemp("mesh")) as running:
        yield running


def run(mesh: MeshProcesses, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'protos'}",
        "GATEWAY": mesh.base_url,
        "SCHEDULER": mesh.mesh.addresses.schedulers[0],
        "POOL": pool_name(BASE_MODEL),
        "SAMPLES": "true",
        "TIMEOUT_SECONDS": "20",
        **variables,
    }
    return subprocess.run(
        [sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def keys(mesh: MeshProcesses) -> list[pb.KeyReport]:
    with blocking_channel(mesh.mesh.addresses.schedulers[0]) as channel:
        return [key for key in TenantsStub(channel).ListKeys(pb.ListKeysRequest()).keys if key.label == "helm test"]


def test_it_trains_and_samples_with_a_key_of_its_own_and_revokes_it(mesh: MeshProcesses) -> None:
    done = run(mesh)
    assert done.returncode == 0, done.stderr
    assert f"{BASE_MODEL} trains and samples" in done.stdout
    assert [key.state for key in keys(mesh)] == ["revoked"]


def test_a_pool_that_is_not_there_is_named(mesh: MeshProcesses) -> None:
    done = run(mesh, POOL="elsewhere", TIMEOUT_SECONDS="1")
    assert done.returncode == 1
    assert "pool elsewhere has not registered" in done.stderr


def test_a_gateway_that_does_not_answer_fails_the_test_and_leaves_no_key(mesh: MeshProcesses) -> None:
    done = run(mesh, GATEWAY="http://127.0.0.1:1", TIMEOUT_SECONDS="1")
    assert done.returncode == 1
    assert "create_session: HTTP 0" in done.stderr
    assert {key.state for key in keys(mesh)} == {"revoked"}
