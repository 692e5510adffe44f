"""Two workers start no engine twice, and split no file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import lanes


def written(root: Path, name: str, text: str) -> str:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)
    return name


def test_files_that_use_one_engine_are_one_lane(tmp_path: Path) -> None:
    files = [written(tmp_path, f"tests/e2e/test_{n}.py", "def test_it(real_mesh): ...") for n in "ab"]
    assert [lanes.lane(file, tmp_path) for file in files] == ["real_mesh", "real_mesh"]


def test_any_other_file_is_a_lane_of_its_own(tmp_path: Path) -> None:
    """Also where a fixture of another directory has the same name, or a longer one."""
    files = [
        written(tmp_path, "tests/mesh/test_a.py", "def test_it(sampler): ..."),
        written(tmp_path, "tests/e2e/test_c.py", "def test_it(real_mesh_of_mine): ..."),
    ]
    assert [lanes.lane(file, tmp_path) for file in files] == files


def test_the_shared_fixtures_are_where_they_are_said_to_be() -> None:
    for name, where in lanes.SHARED.items():
        assert f"def {name}(" in (lanes.ROOT / where / "conftest.py").read_text()


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="one process has no lanes")
@pytest.mark.parametrize("number", range(8))
def test_one_worker_runs_all_of_a_file(number: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Its workers share a base directory; each leaves its name there."""
    names = tmp_path_factory.getbasetemp().parent / "workers-of-test-lanes"
    names.mkdir(exist_ok=True)
    (names / os.environ["PYTEST_XDIST_WORKER"]).touch()
    assert len(list(names.iterdir())) == 1
