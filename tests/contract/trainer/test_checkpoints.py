"""Save, load and snapshot through the service: what is written, refused and restored."""

from __future__ import annotations

import asyncio
import errno
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tinkermesh.v1.types_pb2 import FAILURE_CATEGORY_SERVER, FAILURE_CATEGORY_USER, AdapterLayout

from services.trainer import checkpoint
from tests.contract.trainer.harness import LAYOUT, MODEL, Client, LocalTrainer, datum, local_trainer

Rig = tuple[LocalTrainer, Client]


async def train(client: Client, slot: int, steps: int, *, load: int = 1, seed: int = 0) -> None:
    for step in range(steps):
        await client.done(client.units.train([(slot, [datum(seed=seed + step)])], load=load))
        await client.done(client.units.optim(slot, load=load))


async def test_resume_in_another_slot_is_bitwise_CKPT_05_CKPT_07(rig: Rig):
    trainer, client = rig
    await client.done(client.units.init(0))
    await train(client, 0, 3)
    version = await client.published(client.units.save(0, "k3"))
    await client.done(client.units.load(3, version))
    assert trainer.engine.slot_digest(3) == trainer.engine.slot_digest(0)
    await train(client, 0, 1, seed=50)
    await train(client, 3, 1, seed=50)
    assert trainer.engine.slot_digest(3) == trainer.engine.slot_digest(0)


@pytest.mark.parametrize("control", ["weights only", "masters through bfloat16", "clock reset"])
async def test_incomplete_state_is_not_bitwise_CKPT_07_negative_control(rig: Rig, control: str):
    trainer, client = rig
    await client.done(client.units.init(0))
    await train(client, 0, 3)
    version = await client.published(client.units.save(0, "k3"))
    await client.done(client.units.load(3, version, optimizer=control != "weights only"))
    copy = trainer.engine.slots[3]
    if control == "masters through bfloat16":
        copy.weights = {name: t.bfloat16().float() for name, t in copy.weights.items()}
    if control == "clock reset":
        copy.step = 0
    await train(client, 0, 1, seed=50)
    await train(client, 3, 1, seed=50)
    assert trainer.engine.slot_digest(3) != trainer.engine.slot_digest(0)


async def test_load_without_the_optimizer_starts_adam_fresh_CKPT_09(rig: Rig):
    trainer, client = rig
    await client.done(client.units.init(0))
    await train(client, 0, 2)
    version = await client.published(client.units.save(0, "k2"))
    await client.done(client.units.load(1, version, optimizer=False))
    loaded, source = trainer.engine.slots[1], trainer.engine.slots[0]
    assert (loaded.averages, loaded.squares, loaded.step) == ({}, {}, 0)
    assert all(torch.equal(loaded.weights[name], weight) for name, weight in source.weights.items())


async def test_pending_gradients_are_not_saved_and_a_load_clears_them_CKPT_10(rig: Rig):
    trainer, client = rig
    await client.done(client.units.init(0))
    await client.done(client.units.train([(0, [datum()])]))
    version = await client.published(client.units.save(0, "pending"))
    assert trainer.engine.window_open(0)
    await client.done(client.units.load(1, version))
    outcome = await client.done(client.units.optim(1))
    assert outcome.slots[0].metrics["grad_norm"] == 0
    await client.done(client.units.load(0, version, into=1))
    assert not trainer.engine.window_open(0)


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


def _drop(version: Path) -> None:
    (version / "adapter_model.safetensors").unlink()


def _flip(version: Path) -> None:
    path = version / "adapter_model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def _truncate(version: Path) -> None:
    path = version / "optimizer.safetensors"
    path.write_bytes(path.read_bytes()[:-8])


def _garbage_meta(version: Path) -> None:
    (version / "meta.json").write_text("{")


def _edit_meta(version: Path, **changes: object) -> None:
    path = version / "meta.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _rewrite(version: Path, file: str, change) -> None:
    """Changes tensors and makes the manifest agree, so only the deeper checks can notice."""
    tensors = load_file(version / file)
    change(tensors)
    save_file(tensors, version / file)
    data = (version / file).read_bytes()
    files = json.loads((version / "meta.json").read_text())["files"]
    files[file] = {"bytes": len(data), "blake2b": checkpoint._checksum(data)}
    _edit_meta(version, files=files)


def _missing_tensor(version: Path) -> None:
    _rewrite(version, "adapter_model.safetensors", lambda t: t.pop(next(iter(t))))


def _unknown_tensor(version: Path) -> None:
    _rewrite(version, "adapter_model.safetensors", lambda t: t.update(extra=torch.zeros(1)))


def _misshaped(version: Path) -> None:
    _rewrite(version, "optimizer.safetensors", lambda t: t.update({k: v[:1] for k, v in list(t.items())[:1]}))


def _wrong_dtype(version: Path) -> None:
    _rewrite(version, "adapter_model.safetensors", lambda t: t.update({k: v.half() for k, v in list(t.items())[:1]}))


def _not_finite(version: Path) -> None:
    _rewrite(version, "adapter_model.safetensors", lambda t: next(iter(t.values())).fill_(float("nan")))


DAMAGE = {
    "missing file": (_drop, "cannot be read"),
    "flipped bit": (_flip, "adapter_model.safetensors does not match its checksum"),
    "truncated file": (_truncate, "optimizer.safetensors does not match its checksum"),
    "garbage metadata": (_garbage_meta, "meta.json cannot be read"),
    "metadata of another type": (lambda v: (v / "meta.json").write_text("[1]"), "not an object"),
    "newer format": (lambda v: _edit_meta(v, format_version=2), "format_version is 2"),
    "bad step": (lambda v: _edit_meta(v, optimizer_step="3"), "optimizer_step"),
    "missing tensor": (_missing_tensor, "1 tensors missing"),
    "unknown tensor": (_unknown_tensor, "1 unknown"),
    "misshaped tensor": (_misshaped, "has shape"),
    "wrong dtype": (_wrong_dtype, "expected float32"),
    "not finite": (_not_finite, "not finite"),
    "whole version gone": (shutil.rmtree, "does not exist"),
}


@pytest.mark.parametrize("kind", DAMAGE)
async def test_damaged_checkpoint_is_a_user_error_and_the_slot_is_bitwise_unchanged_CKPT_06_CKPT_17(
    rig: Rig, kind: str
):
    trainer, client = rig
    damage, text = DAMAGE[kind]
    await client.done(client.units.init(0))
    await train(client, 0, 2)
    version = await client.published(client.units.save(0, "a"))
    await client.done(client.units.train([(0, [datum(seed=9)])]))
    before = trainer.digests()
    damage(trainer.store / version)
    outcome, _ = await client.execute(client.units.load(0, version, into=1))
    assert outcome.failure.category == FAILURE_CATEGORY_USER
    assert text in outcome.failure.message
    assert str(trainer.store) not in outcome.failure.message
    assert not any(slot.assignment_began for slot in outcome.slots)
    assert trainer.digests() == before
    await client.done(client.units.optim(0))


async def test_failure_after_assignment_began_is_told_CKPT_06(rig: Rig):
    trainer, client = rig
    await client.done(client.units.init(0))
    version = await client.published(client.units.save(0, "a"))
    trainer.engine.broken["restore"] = RuntimeError("boom")
    outcome, _ = await client.execute(client.units.load(0, version, into=1))
    assert outcome.slots[0].assignment_began
    assert outcome.slots[0].failure.category == FAILURE_CATEGORY_SERVER


@pytest.mark.parametrize(
    ("field", "layout"),
    [
        ("rank", AdapterLayout(rank=2, alpha=32.0, train_attn=True, train_mlp=True, train_unembed=True)),
        ("alpha", AdapterLayout(rank=4, alpha=16.0, train_attn=True, train_mlp=True, train_unembed=True)),
        ("train_unembed", AdapterLayout(rank=4, alpha=32.0, train_attn=True, train_mlp=True)),
    ],
)
async def test_checkpoint_of_another_layout_is_refused_naming_the_field_CKPT_12(rig: Rig, field: str, layout):
    trainer, client = rig
    await client.done(client.units.init(0))
    version = await client.published(client.units.save(0, "a"))
    before = trainer.digests()
    assert f"{field} is {getattr(LAYOUT, field)!r}" in await client.refused(
        client.units.load(1, version, layout=layout)
    )
    assert trainer.digests() == before


async def test_checkpoint_of_another_base_model_and_snapshots_are_refused_CKPT_12(rig: Rig):
    trainer, client = rig
    await client.done(client.units.init(0))
    version = await client.published(client.units.save(0, "a"))
    _edit_meta(trainer.store / version, base_model="other/model")
    assert "base_model is 'other/model'" in await client.refused(client.units.load(1, version))
    snapshot = await client.published(client.units.snapshot(0, "1"))
    assert "kind is 'sampler_weights'" in await client.refused(client.units.load(1, snapshot))


async def test_directories_outside_the_store_are_refused(rig: Rig):
    trainer, client = rig
    await client.done(client.units.init(0))
    assert "leaves the store" in await client.refused(client.units.load(1, "../elsewhere"))
    unit = client.units.save(0, "a")
    unit.save.directory = "runs/../../outside/weights/a"
    assert "leaves the store" in await client.refused(unit)
    assert not (trainer.store.parent / "outside").exists()


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
        _rewrite(newer, "adapter_model.safetensors", lambda t: [v.add_(1) for v in t.values()])
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
