"""A few histories of the campaign on every run of the tests; `make chaos` plays hundreds."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.history import Fault, make
from tests.chaos.mesh import ChaosMesh
from tests.chaos.shard import play

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(280)]


def at(point: str, holder: str, nth: int, victim: str = "") -> Fault:
    return Fault("kill", victim, point=point, holder=holder, nth=nth)


# A seed's work and what strikes it; every one of these points is reached.
HISTORIES = {
    6: (at("redis:unit_settle:after", "scheduler", 3), at("redis:train_view:before", "scheduler", 8)),
    1042: (at("answer:Execute", "trainer", 6), at("fsync:before", "trainer", 2)),
    1002: (at("redis:unit_issue:before", "scheduler", 4, "redis"), at("reply:submit", "gateway", 5)),
    57: (at("redis:unit_settle:before", "scheduler", 4, "trainer"), at("serve:LoadAdapter", "sampler", 1)),
}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChaosMesh]:
    """With fewer slots than models: they are paged, too."""
    with ChaosMesh(tmp_path_factory.mktemp("chaos") / "mesh", trainer_options=["--slots", "2"]) as running:
        yield running


@pytest.mark.parametrize("seed", HISTORIES)
def test_a_killed_mesh_answers_like_an_undisturbed_one(mesh: ChaosMesh, seed: int) -> None:
    verdict = asyncio.run(play(mesh, replace(make(seed), faults=HISTORIES[seed])))
    assert verdict.violations == []
    assert [fault["where"] for fault in verdict.faults] == [fault.point for fault in HISTORIES[seed]]


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
