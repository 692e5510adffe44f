"""A few histories of the campaign on every run of the tests; `make chaos` plays hundreds."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.history import KINDS, make
from tests.chaos.mesh import ChaosMesh
from tests.chaos.shard import play

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(280)]
VICTIMS = tuple(kind for kind in KINDS if kind != "trainer")
SEEDS = (4, 6, 12)


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChaosMesh]:
    with ChaosMesh(tmp_path_factory.mktemp("chaos") / "mesh") as running:
        yield running


@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_mesh_answers_like_an_undisturbed_one(mesh: ChaosMesh, seed: int) -> None:
    verdict = asyncio.run(play(mesh, make(seed, VICTIMS)))
    assert verdict.violations == []
    assert verdict.commands > 20


def test_a_planted_fault_is_found_through_the_whole_mesh(tmp_path: Path) -> None:
    """Negative control: this trainer forgets every ninth gradient."""
    with ChaosMesh(tmp_path / "mesh", variables={"TINKERMESH_CHAOS_PLANT": "lost_gradient"}) as mesh:
        found = asyncio.run(play(mesh, make(6).calm())).violations
    assert any("weights/end holds" in text for text in found), found
    assert any("metrics" in text for text in found), found


def test_kills_are_noticed_as_restarts(mesh: ChaosMesh) -> None:
    before = mesh.restarts("gateway-1")
    assert mesh.strike("gateway-1", signal.SIGKILL)
    mesh.wait_restarted("gateway-1", before + 1)
