"""Resume through the service: what a load restores, and what it takes to be bitwise."""

from __future__ import annotations

import pytest
import torch

from tests.contract.trainer.harness import Rig, datum, train


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
