"""GAP-03 on the real trainer: stopped in the middle of a save, overtaken, continued."""

from __future__ import annotations

import hashlib
import signal
from pathlib import Path

import pytest

from tests.contract.scheduler.real_trainer import RealTrainerMesh, real_trainer_mesh
from tests.contract.scheduler.requests import new_session
from tests.doubles.valkey import ValkeyProcess
from tools.make_tiny_qwen3 import build

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def published(root: Path) -> dict[str, str]:
    """All that lies under runs/: where each link leads, and a digest of each file."""
    return {str(path.relative_to(root)): _content(path) for path in (root / "runs").rglob("*")}


def _content(path: Path) -> str:
    if path.is_symlink():
        return str(path.readlink())
    return "" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()


def version_of(root: Path, model: str, name: str) -> Path:
    return (root / "runs" / model / "weights" / name).resolve(strict=True)


def stages(root: Path) -> set[str]:
    """Incarnations that have a place to publish from."""
    found = (root / "fences").glob("*/_stage_*")
    return {path.name.removeprefix("_stage_").rpartition("_")[0] for path in found}


async def test_a_stopped_trainer_publishes_nothing_after_another_took_over_GAP_03(
    valkey: ValkeyProcess, redis_client: object, tmp_path: Path
) -> None:
    model_dir = build(tmp_path / "tiny-qwen3")
    async with real_trainer_mesh(valkey.url, tmp_path / "mesh", model_dir) as mesh:
        model = await mesh.opened(new_session())
        await mesh.done(await mesh.batch(model, 1, [9, 14]))
        await mesh.done(await mesh.step(model, 2))
        await mesh.done(await mesh.save(model, 3, "first"))
        first = version_of(mesh.root, model, "first")
        hold, publishing = mesh.hooks / "hold_publish", mesh.hooks / "publishing"
        publishing.unlink()
        hold.touch()
        again = await mesh.save(model, 4, "first", overwrite=True)
        await mesh.until(publishing.exists)
        zombie, incarnation = mesh.process, mesh.incarnation
        assert zombie is not None
        zombie.process.send_signal(signal.SIGSTOP)

        hold.unlink()
        await replaced(mesh)
        other = await mesh.opened(new_session())
        await mesh.done(await mesh.batch(other, 1, [7]))
        await mesh.done(await mesh.save(other, 2, "theirs"))
        await mesh.done(again)  # the new trainer has run the interrupted save once more
        second = version_of(mesh.root, model, "first")
        assert second != first and incarnation not in stages(mesh.root)
        before = published(mesh.root)
        zombie.process.send_signal(signal.SIGCONT)
        assert await zombie.wait(60) == 1
        log = zombie.log()
        assert f"refused: publication of runs/{model}/weights/first" in log
        assert "the trainer ends: incarnation" in log
        assert "was superseded in pool double by" in log
        assert published(mesh.root) == before
        assert stages(mesh.root) == {mesh.incarnation}
        await mesh.done(await mesh.step(other, 3))


async def replaced(mesh: RealTrainerMesh) -> None:
    """A second process serves the pool; the first is left as it is."""
    Path(mesh.settings.port_file).unlink()
    await mesh.start_trainer()
