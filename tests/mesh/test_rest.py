"""Every method of the SDKs' RestClient against real gateways and schedulers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.fake_trainer import BASE_MODEL
from tests.doubles.mesh import MeshProcesses
from tests.doubles.scenario import ROOT
from tests.doubles.sdk_matrix import OLDEST, interpreter

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(180)]
SCRIPT = ROOT / "tests" / "e2e" / "rest_scenario.py"
SECONDS = 120.0
READS = {"info", "sample", "urls", "archive"}


def report_of(mesh: MeshProcesses, directory: Path, python: Path, other_key: str) -> dict[str, Any]:
    mesh.add_key(other_key)
    file = directory / "report.json"
    done = subprocess.run(
        [str(python), str(SCRIPT), "--base-model", BASE_MODEL, "--report", str(file), "--other-key", other_key],
        env={**os.environ, **mesh.environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    report: dict[str, Any] = json.loads(file.read_bytes())
    return report


@pytest.fixture(scope="module")
def newest(mesh: MeshProcesses, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return report_of(mesh, tmp_path_factory.mktemp("rest38"), Path(sys.executable), "tml-other-of-0.38")


@pytest.fixture(scope="module")
def oldest(mesh: MeshProcesses, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return report_of(mesh, tmp_path_factory.mktemp("rest26"), interpreter(OLDEST), "tml-other-of-0.26")


@pytest.fixture(params=["newest", "oldest"])
def report(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.getfixturevalue(request.param))


def test_training_runs_are_listed_and_described_API_01(report: dict[str, Any]) -> None:
    runs = report["runs"]
    assert runs["own"] and runs["listed"][0] == runs["run_id"]
    assert (runs["base_model"], runs["rank"], runs["metadata"]) == (BASE_MODEL, 8, {"renderer_name": "role_colon"})
    assert [path.split("/", 3)[3] for path in runs["last"]] == ["weights/kept", "sampler_weights/sampler"]
    assert runs["cursor"][:2] == [0, 5] and runs["cursor"][2] == runs["accessible"] >= 1


def test_checkpoints_are_listed_by_run_and_in_pages(report: dict[str, Any]) -> None:
    found = report["checkpoints"]
    kinds = {"weights/state": "training", "weights/kept": "training", "sampler_weights/sampler": "sampler"}
    external = {"external_weights/export": "external"} if report["sdk"] == "0.38.0" else {}
    assert found["of_run"] == kinds | external
    assert len(set(found["pages"])) == 4 and found["total"] >= 3
    assert not any(found["public"])
    assert "weights/kept" in found["expiring"] and "weights/state" not in found["expiring"]
    assert found["info"] == [BASE_MODEL, True, 8, True]


def test_a_ttl_is_set_cleared_and_comes_true_API_11(report: dict[str, Any]) -> None:
    lifetime = report["lifetime"]
    assert lifetime["cleared"] and 0.99 < lifetime["days"] < 1.01
    assert (lifetime["expired"], lifetime["listed"], lifetime["revived"]) == (404, False, 404)
    assert lifetime["too_long"] == 400


def test_only_what_is_public_is_readable_by_others_and_only_readable_SEC_05(report: dict[str, Any]) -> None:
    sharing = report["sharing"]
    assert set(sharing["before"].values()) == set(sharing["after"].values()) == {403}
    assert sharing["shown"] and sharing["sampled"] > 0
    assert {name for name, status in sharing["during"].items() if status == 0} == READS & set(sharing["during"])
    assert {status for name, status in sharing["during"].items() if name not in READS} == {403}


def test_sessions_are_listed_described_and_moved_between_projects(report: dict[str, Any]) -> None:
    sessions = report["sessions"]
    assert sessions["listed"] and sessions["runs"]
    assert sessions["metadata"] == {"purpose": "rest"} and sessions["projects"] == [1, 1]
    assert sessions["sampler"][0] == BASE_MODEL and sessions["sampler"][1].endswith("/sampler_weights/sampler")
    assert sessions["display_name"] == ("Nightly run" if report["sdk"] == "0.38.0" else None)


def test_a_deleted_checkpoint_is_gone_and_its_name_free(report: dict[str, Any]) -> None:
    deletion = report["deletion"]
    assert (deletion["fewer"], deletion["again"], deletion["name_is_free"]) == (2, 404, True)
    assert deletion["last"].endswith("/weights/kept")


def test_external_weights_are_fetched_by_a_plain_http_client(newest: dict[str, Any]) -> None:
    files = newest["files"]
    assert files["path"].endswith("/external_weights/export") and files["type"] == "external"
    assert files["files"]["state.json"] > 0 and "meta.json" not in files["files"]
    assert files["range"] == [True] and files["tampered"] == [403, 403]
    assert 3000 < files["expires_in"] <= 3600
    assert "age_encryption_recipients" in files["age"] and files["sampled"] == 400


def test_the_archive_of_sdk_0_26_holds_the_files(oldest: dict[str, Any]) -> None:
    assert oldest["files"]["names"] == ["state.json"] and 3000 < oldest["files"]["expires_in"] <= 3600


def test_copies_are_runs_of_their_own_and_need_read_rights_SEC_05(newest: dict[str, Any]) -> None:
    copies = newest["copies"]
    assert copies["own_run"] and copies["project"] == 1 and copies["total"] == 2  # the copy, and what was loaded
    assert copies["metadata"] == {"renderer_name": "role_colon"}
    assert (copies["loaded"], copies["foreign"], copies["with_token"]) == (8, 403, 8)


def test_sessions_are_searched(newest: dict[str, Any]) -> None:
    search = newest["search"]
    assert search["pages"] == [["sweep 2 of many", "sweep 1 of many"], ["sweep 0 of many"]]
    assert search["named"] == [True] and search["foreign"] == 0
    assert search["summary"] == ["second", "Nightly run", "active", True, {"purpose": "rest"}]
    assert search["finished"] == [["sweep 2 of many", "errored"]]


def test_what_only_the_hosted_service_has_is_404(newest: dict[str, Any]) -> None:
    assert newest["hosted_only"] == {"trace_export": 404}
