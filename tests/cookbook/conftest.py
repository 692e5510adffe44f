"""Real meshes for the recipes: the tiny model where learning from nothing will do, SmolLM2 where reward must be earned.

`make cookbook` runs them; the ordinary suite leaves them out, since they take about a quarter of an hour.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.local import default_model
from tests.cookbook.recipe import Kitchen
from tests.cookbook.results import Results
from tests.cookbook.workspace import BASE, make_workspace
from tests.doubles.mesh import RealMeshProcesses
from tools.cookbook_venv import MARKER, PLACE
from tools.make_tiny_qwen3 import build


@pytest.fixture(scope="session")
def results() -> Iterator[Results]:
    kept = Results()
    yield kept
    kept.write()
    print("\n" + kept.table())


def _kitchen(directory: Path, model: Path, threads: int) -> Iterator[Kitchen]:
    if not (PLACE / MARKER).is_file():
        pytest.fail("no environment of the cookbook: run `make cookbook`")
    workspace = make_workspace(directory / "workspace", model)
    options = {"aliases": (BASE,), "max_rank": 32, "max_context": 2048, "threads": threads}
    with RealMeshProcesses(directory / "mesh", model, **options) as mesh:
        yield Kitchen(workspace, mesh.environment)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kitchen]:
    directory = tmp_path_factory.mktemp("tiny")
    yield from _kitchen(directory, build(directory / "tiny-qwen3"), threads=1)


@pytest.fixture(scope="module")
def smol(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kitchen]:
    yield from _kitchen(tmp_path_factory.mktemp("smol"), default_model.ensure(), threads=2)
