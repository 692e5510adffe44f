"""Save and snapshot through the service: what is written, under which name, and when."""

from __future__ import annotations

import asyncio
import errno
import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tinkermesh.v1.types_pb2 import FAILURE_CATEGORY_SERVER, FAILURE_CATEGORY_USER

from services.trainer import checkpoint
from tests.contract.trainer.damage import rewrite
from tests.contract.trainer.harness import MODEL, Rig, local_trainer, train


async def test_metadata_and_files_of_a_checkpoint_CKPT_11(rig: Rig):
    trainer, client = rig
    await client.done(client.units.init(0))
    await train(client, 0, 2)
    version = trainer.store / await client.published(client.units.save(0, "a"))
    meta = json.loads((version / "meta.json").read_text())
    assert (meta["tenant_id"], meta["kind"], meta["base_model"]) == ("tenant", "weights", "tinkermesh/stub")
    assert (meta["format_version"], meta["optimizer_step"]) == (1, 2)
    assert meta["topology"] == {"tensor_parallel": 1, "data_parallel": 1}
    assert set(meta["files"]) == {"adapter_config.json", "adapter_model.safetensors", "optimizer.safetensors"}
    assert all((version / name).stat().st_size == told["bytes"] for name, told in meta["files"].items())
    names = (
        load_file(version / "adapter_model.safetensors").keys() | load_file(version / "optimizer.safetensors").keys()
    )
    assert not [name for name in names if "slot" in name]


async def test_snapshot_holds_weights_only(rig: Rig):
    trainer, client = rig
    await client.done(client.units.init(0))
    await train(client, 0, 1)
    version = trainer.store / await client.published(client.units.snapshot(0, "1"))
    assert {f.name for f in version.iterdir()} == {"meta.json", "adapter_config.json", "adapter_model.safetensors"}
    config = json.loads((version / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (4, 32)
    assert config["target_modules"] == ["lm_head", "o_proj", "q_proj", "up_proj"]
    link = trainer.store / f"runs/{MODEL}/sampler_weights/1"
    assert link.is_symlink()
    assert link.readlink() == Path(version.name)


async def test_an_export_holds_what_a_snapshot_holds_under_its_own_kind(rig: Rig):
    trainer, client = rig
    await client.done(client.units.init(0))
    await train(client, 0, 1)
    unit = client.units.snapshot(0, "x", created=1)
    unit.snapshot.meta.kind, unit.snapshot.directory = "external_weights", f"runs/{MODEL}/external_weights/x"
    version = trainer.store / await client.published(unit)
    snapshot = trainer.store / await client.published(client.units.snapshot(0, "x", created=1))
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (version / name).read_bytes() == (snapshot / name).read_bytes()
    assert {f.name for f in version.iterdir()} == {f.name for f in snapshot.iterdir()}
    load = client.units.load(1, str(version.relative_to(trainer.store)))
    assert "kind is 'external_weights'" in await client.refused(load)


async def test_existing_name_needs_overwrite_and_plain_directories_stay_CKPT_04(rig: Rig):
    trainer, client = rig
    await client.done(client.units.init(0))
    first = await client.published(client.units.save(0, "a", created=1))
    assert "1: name 'a' exists already" in await client.refused(client.units.save(0, "a", created=2))
    second = await client.published(client.units.save(0, "a", created=2, overwrite=True))
    assert first != second
    plain = trainer.store / f"runs/{MODEL}/weights/plain"
    plain.mkdir()
    assert "1: plain is a plain directory" in await client.refused(client.units.save(0, "plain", overwrite=True))


async def test_snapshot_name_is_never_reused_even_with_equal_content_SNAP_01(rig: Rig):
    _, client = rig
    await client.done(client.units.init(0))
    await client.published(client.units.snapshot(0, "s", created=1))
    assert "exists already" in await client.refused(client.units.snapshot(0, "s", created=2))


async def test_two_saves_of_one_name_in_flight_publish_once_CKPT_20(rig: Rig, monkeypatch):
    trainer, client = rig
    await client.done(client.units.init(0))
    monkeypatch.setattr(trainer.leader._writer, "admit", lambda destination: None)
    one, two = client.units.save(0, "a", created=1), client.units.save(0, "a", created=2)
    artifacts = await asyncio.gather(client.artifact(one), client.artifact(two))
    failed = [a.failure for a in artifacts if a.HasField("failure")]
    assert [f.category for f in failed] == [FAILURE_CATEGORY_USER]


async def test_rerun_of_a_published_save_in_a_new_incarnation_answers_its_version(tmp_path):
    async with local_trainer(tmp_path) as (_, client):
        await client.done(client.units.init(0))
        saved = await client.published(client.units.save(0, "a", created=77))
        snapshot = await client.published(client.units.snapshot(0, "1", created=78))
    (tmp_path / "port").unlink()
    async with local_trainer(tmp_path) as (_, client):
        await client.done(client.units.init(0))
        assert await client.published(client.units.save(0, "a", created=77)) == saved
        assert await client.published(client.units.snapshot(0, "1", created=78)) == snapshot


async def test_overwrite_with_other_content_publishes_even_if_the_metadata_is_equal(rig: Rig):
    _, client = rig
    await client.done(client.units.init(0))
    first = await client.published(client.units.save(0, "durable", created=5, overwrite=True))
    assert await client.published(client.units.save(0, "durable", created=5, overwrite=True)) == first
    await train(client, 0, 1)
    assert await client.published(client.units.save(0, "durable", created=5, overwrite=True)) != first


async def test_older_term_does_not_overwrite_what_a_newer_one_published_CKPT_20(rig: Rig, tmp_path):
    _, client = rig
    await client.done(client.units.init(0))
    client.units.term = 9
    await client.published(client.units.save(0, "a"))
    (tmp_path / "port").unlink()
    async with local_trainer(tmp_path) as (_, zombie):
        zombie.units.term = 8
        await zombie.done(zombie.units.init(0))
        assert "newer term" in await zombie.refused(zombie.units.save(0, "a", overwrite=True))


async def test_saved_image_is_the_captured_one_even_if_the_slot_steps_meanwhile_CKPT_19(rig: Rig):
    trainer, client = rig
    await client.done(client.units.init(0))
    await train(client, 0, 1)
    captured = trainer.engine.slot_digest(0)
    hold = asyncio.Event()
    loop = asyncio.get_running_loop()

    def reached(step: str) -> None:
        if step == "temporary":
            asyncio.run_coroutine_threadsafe(hold.wait(), loop).result(20)

    trainer.leader._writer._reached = reached
    unit = client.units.save(0, "a")
    await client.done(unit)
    await train(client, 0, 1, seed=80)
    assert not (trainer.store / f"runs/{MODEL}/weights/a").exists()
    hold.set()
    artifact = await client.stub.AwaitArtifact(client.ref(unit), timeout=20)
    await client.done(client.units.load(1, artifact.version_directory))
    assert trainer.engine.slot_digest(1) == captured != trainer.engine.slot_digest(0)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
async def test_store_that_does_not_take_a_save_fails_that_save_only_FAIL_15(rig: Rig, code: int):
    trainer, client = rig
    await client.done(client.units.init(0))
    before = trainer.digests()

    def full(step: str) -> None:
        if step == "temporary":
            raise OSError(code, "injected", "/secret/place")

    trainer.leader._writer._reached = full
    artifact = await client.artifact(client.units.save(0, "a"))
    assert artifact.failure.category == FAILURE_CATEGORY_SERVER
    assert "secret" not in artifact.failure.message
    assert trainer.digests() == before
    directory = trainer.store / f"runs/{MODEL}/weights"
    assert list(directory.iterdir()) == []
    trainer.leader._writer._reached = lambda step: None
    await train(client, 0, 1)
    await client.published(client.units.save(0, "a"))


async def test_store_can_be_moved_CKPT_02(tmp_path):
    async with local_trainer(tmp_path) as (trainer, client):
        await client.done(client.units.init(0))
        await train(client, 0, 2)
        await client.published(client.units.save(0, "a"))
        await client.published(client.units.save(0, "a", overwrite=True))
        digest = trainer.engine.slot_digest(0)
    (tmp_path / "store").rename(tmp_path / "moved")
    (tmp_path / "port").unlink()
    async with local_trainer(tmp_path, store_root=str(tmp_path / "moved")) as (trainer, client):
        await client.done(client.units.load(2, f"runs/{MODEL}/weights/a"))
        assert trainer.engine.slot_digest(2) == digest


async def test_load_reads_one_pinned_version_even_if_overwritten_meanwhile_CKPT_03(rig: Rig, monkeypatch):
    trainer, client = rig
    await client.done(client.units.init(0))
    await train(client, 0, 1)
    await client.published(client.units.save(0, "a"))
    old = trainer.engine.slot_digest(0)
    public = trainer.store / f"runs/{MODEL}/weights/a"
    plain, swung = checkpoint._read_meta, []

    def overwrite_after_metadata(directory: Path, name: str):
        meta = plain(directory, name)
        newer = directory.with_name("_version_a_" + "0" * 32)
        shutil.copytree(directory, newer)
        rewrite(newer, "adapter_model.safetensors", lambda t: [v.add_(1) for v in t.values()])
        (public.parent / "link").symlink_to(newer.name)
        (public.parent / "link").replace(public)
        swung.append(newer)
        return meta

    monkeypatch.setattr(checkpoint, "_read_meta", overwrite_after_metadata)
    await client.done(client.units.load(1, f"runs/{MODEL}/weights/a"))
    assert trainer.engine.slot_digest(1) == old
    monkeypatch.setattr(checkpoint, "_read_meta", plain)
    await client.done(client.units.load(2, f"runs/{MODEL}/weights/a"))
    assert swung
    assert trainer.engine.slot_digest(2) != old
