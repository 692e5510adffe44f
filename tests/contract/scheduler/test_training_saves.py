"""Saves settle after publication, later commands run after the capture; loads are checked first."""

from __future__ import annotations

from typing import Any

import pytest
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import KeyConflict, MissingResource, Unavailable
from services.common.store import resolve
from services.common.tinker_path import TinkerPath, parse_tinker_path
from services.scheduler.artifacts import Artifact, Artifacts
from services.scheduler.dispatch import artifacts
from services.scheduler.store.catalog import CatalogStore
from services.scheduler.store.functions import Functions
from tests.contract.scheduler.recovering import busy, kill_trainer
from tests.contract.scheduler.requests import LAYOUT, TENANT, new_session
from tests.contract.scheduler.rig import Mesh


async def snapshot(mesh: Mesh, model: str, seq: int, name: str = "", key: int | None = None) -> str:
    body: dict[str, Any] = {"name": name} if name else {"sampling_session_seq_id": key if key is not None else seq}
    return await mesh.command(model, seq, save_for_sampler=types.SaveForSamplerBody(**body))


async def test_training_goes_on_while_a_save_is_written(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    hold = mesh.trainer.faults.add("hold_before", "publish")
    save = await mesh.save(model, 1)
    await mesh.done(await mesh.batch(model, 2))
    assert await mesh.state(save) == "captured"
    mesh.trainer.faults.remove(hold)
    await mesh.done(save)


async def test_a_save_settles_only_once_it_is_listed_and_a_lost_listing_is_repeated(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = await mesh.opened(new_session())
    catalog = mesh.replicas[0].training._driver._parts.catalog
    states: list[str] = []
    listing = catalog.published
    save = ""

    async def lost_once(pool: str, path: TinkerPath, size_bytes: int) -> None:
        states.append(await mesh.state(save))
        if len(states) == 1:
            raise Unavailable("Redis is away")
        await listing(pool, path, size_bytes)

    monkeypatch.setattr(type(catalog), "published", lambda self, *arguments: lost_once(*arguments))
    hold = mesh.trainer.faults.add("hold_before", "publish")
    save = await mesh.save(model, 1, "kept")
    mesh.trainer.faults.remove(hold)
    await mesh.done(save)
    assert states == ["captured", "captured"]
    store = CatalogStore(mesh.redis, Functions(mesh.redis))
    total, found = await store.checkpoints(TENANT, model, 0, 10)
    assert (total, [str(one.path) for one in found]) == (1, [f"tinker://{model}/weights/kept"])


async def test_a_model_is_listed_before_its_create_settles(mesh: Mesh) -> None:
    session = new_session()
    await mesh.done(await mesh.create(session))
    store = CatalogStore(mesh.redis, Functions(mesh.redis))
    run = await store.run(TENANT, f"{session}:train:0")
    assert run is not None and run.facts.layout == LAYOUT and run.facts.base_model == mesh.facts.base_model
    mesh.trainer.faults.add("fail_user", "init")
    await mesh.failed(await mesh.create(session, 1))
    assert await store.run(TENANT, f"{session}:train:1") is None


async def test_a_failed_publication_fails_only_the_save(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    mesh.trainer.faults.add("fail", "publish")
    assert "injected failure of a publication" in (await mesh.failed(await mesh.save(model, 1))).message
    await mesh.done(await mesh.save(model, 2))


async def test_a_name_is_not_overwritten_unless_asked_CKPT_04(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    await mesh.done(await mesh.save(model, 1, "kept"))
    failure = await mesh.failed(await mesh.save(model, 2, "kept"))
    assert failure.category == types.FAILURE_CATEGORY_USER
    assert "exists already" in failure.message
    await mesh.done(await mesh.save(model, 3, "kept", overwrite=True))


async def test_a_bad_name_fails_in_its_turn_without_the_trainer_VAL_16(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    failure = await mesh.failed(await mesh.save(model, 1, "../escape"))
    assert failure.category == types.FAILURE_CATEGORY_USER
    await mesh.done(await mesh.batch(model, 2))
    assert "save" not in mesh.kinds()


async def test_unnamed_snapshots_count_and_skip_taken_names_SNAP_02(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    named = await mesh.done(await snapshot(mesh, model, 1, "2"))
    assert (named.save.path, named.save.sampling_session_id) == (f"tinker://{model}/sampler_weights/2", "")
    first = (await mesh.done(await snapshot(mesh, model, 2))).save
    second = (await mesh.done(await snapshot(mesh, model, 3))).save
    assert [first.path[-2:], second.path[-2:]] == ["/1", "/3"]
    assert first.sampling_session_id == "sampling-2"
    assert [path for path, _ in mesh.sink.published_paths] == [named.save.path, first.path, second.path]


async def test_a_failed_export_burns_its_number_SNAP_02(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    mesh.trainer.faults.add("fail", "snapshot")
    await mesh.failed(await snapshot(mesh, model, 1))
    assert (await mesh.done(await snapshot(mesh, model, 2))).save.path.endswith("/2")


async def test_a_snapshot_that_runs_again_keeps_its_number_SNAP_02(mesh: Mesh) -> None:
    """Else what its first run may have published would lie there for ever, under a name nobody was told."""
    model = await mesh.opened(new_session())
    mesh.trainer.faults.add("hold_after", "snapshot")
    request = await snapshot(mesh, model, 1)
    await mesh.until(lambda: busy(mesh))
    await kill_trainer(mesh)
    assert (await mesh.done(request)).save.path.endswith("/1")
    assert (await mesh.done(await snapshot(mesh, model, 2))).save.path.endswith("/2")


async def test_a_snapshot_name_is_used_once_SNAP_01(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    await mesh.done(await snapshot(mesh, model, 1, "final"))
    assert "exists already" in (await mesh.failed(await snapshot(mesh, model, 2, "final"))).message


async def test_a_conflict_of_the_sampling_session_fails_the_save(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    mesh.sink.error = KeyConflict("sampling_session_seq_id 1 is taken")
    failure = await mesh.failed(await snapshot(mesh, model, 1))
    assert (failure.category, failure.message) == (1, "sampling_session_seq_id 1 is taken")


async def test_saved_metadata_names_its_owner_CKPT_11(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    path = (await mesh.done(await mesh.save(model, 1, "mine"))).save.path
    artifacts = mesh.replicas[0].training._driver._parts.slot_units.artifacts
    info = await artifacts.weights_info(path, "tenant-a", "")
    assert (info.base_model, info.layout) == (mesh.facts.base_model, LAYOUT)
    assert resolve(mesh.root, parse_tinker_path(path)).name.startswith("_version_mine_")


async def test_a_model_is_created_from_a_checkpoint_with_its_layout_ADD_04(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    await mesh.done(await mesh.step(model, 1))
    path = (await mesh.done(await mesh.save(model, 2))).save.path
    result = await mesh.done(await create_from(mesh, path))
    assert result.model.path == path
    info = await mesh.replicas[0].training.models.describe(result.model.model_id, "tenant-a")
    assert (info.state, info.layout) == ("open", LAYOUT)
    await mesh.done(await mesh.batch(result.model.model_id, 1))


async def create_from(mesh: Mesh, path: str, tenant: str = "tenant-a") -> str:
    from tinkermesh.v1 import scheduler_pb2 as pb

    body = types.CreateFromCheckpointBody(path=path, optimizer=True)
    key = pb.CreateKey(session_id=new_session(), model_seq_id=0)
    command = types.Command(create_from_checkpoint=body)
    return await mesh.submit(pb.SubmitRequest(tenant_id=tenant, create=key, command=command))


@pytest.mark.parametrize("missing", ["nothing-there", "foreign"])
async def test_a_create_from_an_unreadable_checkpoint_frees_its_slot_ADD_04(mesh: Mesh, missing: str) -> None:
    model = await mesh.opened(new_session())
    path = (await mesh.done(await mesh.save(model, 1))).save.path
    if missing == "foreign":
        request = await create_from(mesh, path, tenant="tenant-b")
    else:
        request = await create_from(mesh, path.replace("checkpoint-000001", "gone"))
    assert (await mesh.failed(request)).category == types.FAILURE_CATEGORY_USER
    assert list((await mesh.slots()).values()).count("") == 3


@pytest.mark.parametrize(("field", "rank"), [("rank", 16)])
async def test_a_checkpoint_that_does_not_fit_is_refused_naming_both_values_CKPT_12(
    mesh: Mesh, field: str, rank: int
) -> None:
    model = await mesh.opened(new_session())
    path = (await mesh.done(await mesh.save(model, 1))).save.path
    session = new_session()
    await mesh.done(await mesh.create(session, rank=rank))
    failure = await mesh.failed(await mesh.command(f"{session}:train:0", 1, load_weights={"path": path}))
    assert failure.message == f"{field}: checkpoint {path} has 8, the model has 16"
    assert "load" not in mesh.kinds()


async def test_a_sampler_snapshot_is_not_loaded_for_training_CKPT_12(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    path = (await mesh.done(await snapshot(mesh, model, 1, "s"))).save.path
    failure = await mesh.failed(await mesh.command(model, 2, load_weights={"path": path}))
    assert "sampler snapshot" in failure.message
    await mesh.done(await mesh.batch(model, 3))


async def test_a_load_answers_its_path_and_clears_the_window(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    path = (await mesh.done(await mesh.save(model, 1))).save.path
    await mesh.done(await mesh.batch(model, 2))
    load = await mesh.done(await mesh.command(model, 3, load_weights={"path": path}))
    assert (load.model.model_id, load.model.path) == (model, path)
    assert (await mesh.done(await mesh.step(model, 4))).optim_step.metrics["window_datums"] == 0


async def test_a_trainer_that_breaks_while_it_is_asked_for_a_save_fails_the_save(mesh: Mesh, monkeypatch: Any) -> None:
    model = await mesh.opened(new_session())

    class Broken(dict[str, Any]):
        def get(self, *_: object) -> Any:
            raise RuntimeError("a bug of the trainer")

    with monkeypatch.context() as patched:
        patched.setattr(mesh.trainer.runner, "artifacts", Broken())
        failure = await mesh.failed(await mesh.save(model, 1))
    assert failure.category == 2
    await mesh.done(await mesh.save(model, 2))


def unseen(monkeypatch: pytest.MonkeyPatch, looks: int) -> list[TinkerPath]:
    """The scheduler's mount shows nothing new for so many looks; answers what was looked for."""
    found, looked = Artifacts.stored, []

    async def late(self: Artifacts, path: TinkerPath) -> Artifact:
        looked.append(path)
        if len(looked) <= looks:
            raise MissingResource(f"{path} does not exist")
        return await found(self, path)

    monkeypatch.setattr(Artifacts, "stored", late)
    return looked


async def test_a_publication_that_the_scheduler_sees_late_is_waited_for_CKPT_21(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = await mesh.opened(new_session())
    looked = unseen(monkeypatch, 2)
    assert (await mesh.done(await mesh.save(model, 1, "late"))).save.path.endswith("weights/late")
    assert len(looked) == 3


async def test_a_publication_that_never_shows_fails_its_save_saying_so_CKPT_21(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "VISIBLE_SECONDS", 0.3)
    model = await mesh.opened(new_session())
    unseen(monkeypatch, 1_000)
    failure = await mesh.failed(await mesh.save(model, 1, "never"))
    assert failure.category == types.FAILURE_CATEGORY_SERVER
    assert "does not see it in the shared store after 0.3 s" in failure.message
    await mesh.done(await mesh.step(model, 2))
