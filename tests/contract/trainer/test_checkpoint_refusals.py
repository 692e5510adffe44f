"""Damaged, foreign and misplaced checkpoints are refused before a slot changes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from tinkermesh.v1.types_pb2 import FAILURE_CATEGORY_SERVER, FAILURE_CATEGORY_USER, AdapterLayout

from tests.contract.trainer.damage import edit_meta, rewrite
from tests.contract.trainer.harness import LAYOUT, Rig, datum, train


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


def _missing_tensor(version: Path) -> None:
    rewrite(version, "adapter_model.safetensors", lambda t: t.pop(next(iter(t))))


def _unknown_tensor(version: Path) -> None:
    rewrite(version, "adapter_model.safetensors", lambda t: t.update(extra=torch.zeros(1)))


def _misshaped(version: Path) -> None:
    rewrite(version, "optimizer.safetensors", lambda t: t.update({k: v[:1] for k, v in list(t.items())[:1]}))


def _wrong_dtype(version: Path) -> None:
    rewrite(version, "adapter_model.safetensors", lambda t: t.update({k: v.half() for k, v in list(t.items())[:1]}))


def _not_finite(version: Path) -> None:
    rewrite(version, "adapter_model.safetensors", lambda t: next(iter(t.values())).fill_(float("nan")))


DAMAGE = {
    "missing file": (_drop, "cannot be read"),
    "flipped bit": (_flip, "adapter_model.safetensors does not match its checksum"),
    "truncated file": (_truncate, "optimizer.safetensors does not match its checksum"),
    "garbage metadata": (_garbage_meta, "meta.json cannot be read"),
    "metadata of another type": (lambda v: (v / "meta.json").write_text("[1]"), "not an object"),
    "newer format": (lambda v: edit_meta(v, format_version=2), "format_version is 2"),
    "bad step": (lambda v: edit_meta(v, optimizer_step="3"), "optimizer_step"),
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
    edit_meta(trainer.store / version, base_model="other/model")
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
