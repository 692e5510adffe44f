"""Slots: loads are counted, dirt stays out of circulation, and no slot feels another."""

from __future__ import annotations

from tests.contract.trainer.harness import LAYOUT, Rig, datum


async def test_every_load_of_an_empty_slot_has_its_own_number(rig: Rig):
    _, client = rig
    for expected in (1, 2, 3):
        assert (await client.done(client.units.init(0))).slots[0].load_number == expected
        assert (await client.done(client.units.unload(0))).slots[0].load_number == expected
    assert (await client.done(client.units.init(1))).slots[0].load_number == 1


async def test_load_into_a_loaded_slot_keeps_its_lineage_and_checks_its_number(rig: Rig):
    _, client = rig
    await client.done(client.units.init(0))
    version = await client.published(client.units.save(0, "a"))
    outcome = await client.done(client.units.load(0, version, into=1))
    assert outcome.slots[0].load_number == 1
    assert "holds load 1" in await client.refused(client.units.load(0, version, into=2))


async def test_slot_in_use_is_not_loaded_over_FAIL_04(rig: Rig):
    trainer, client = rig
    await client.done(client.units.init(0))
    before = trainer.digests()
    assert "not vacant" in await client.refused(client.units.init(0, seed=99))
    assert trainer.digests() == before


async def test_slot_touched_by_a_failed_init_is_refused_until_unloaded_FAIL_04(rig: Rig):
    trainer, client = rig
    trainer.engine.broken["init_slot"] = RuntimeError("boom")
    outcome, _ = await client.execute(client.units.init(0))
    assert outcome.slots[0].assignment_began
    assert "internal error" in outcome.slots[0].failure.message
    trainer.engine.broken.clear()
    assert "not vacant" in await client.refused(client.units.init(0))
    await client.done(client.units.unload(0))
    await client.done(client.units.init(0))


async def test_failed_unload_keeps_the_slot_out_FAIL_04(rig: Rig):
    trainer, client = rig
    await client.done(client.units.init(0))
    trainer.engine.broken["clear_slot"] = RuntimeError("boom")
    outcome, _ = await client.execute(client.units.unload(0))
    assert outcome.slots[0].HasField("failure")
    trainer.engine.broken.clear()
    assert "not vacant" in await client.refused(client.units.init(0))
    await client.done(client.units.unload(0))
    await client.done(client.units.unload(0))
    await client.done(client.units.init(0))


async def test_new_tenant_of_a_slot_starts_as_in_a_fresh_process_OPT_02_ADD_09(rig: Rig):
    trainer, client = rig
    await client.done(client.units.init(0))
    for _ in range(3):
        await client.done(client.units.train([(0, [datum()])]))
        await client.done(client.units.optim(0))
    await client.done(client.units.train([(0, [datum()])]))
    await client.done(client.units.unload(0))
    for slot, load in ((0, 2), (1, 1)):
        await client.done(client.units.init(slot, seed=5))
        await client.done(client.units.train([(slot, [datum(seed=3)])], load=load))
        await client.done(client.units.optim(slot, load=load))
    assert trainer.engine.slot_digest(0) == trainer.engine.slot_digest(1)


async def test_work_on_a_slot_changes_no_byte_of_another_ADD_03(rig: Rig):
    trainer, client = rig
    for slot in (1, 2):
        await client.done(client.units.init(slot, seed=slot))
        await client.done(client.units.train([(slot, [datum(seed=slot)])]))
    await client.done(client.units.optim(2))
    await client.done(client.units.train([(2, [datum()])]))
    version = await client.published(client.units.save(2, "source"))
    others = trainer.digests()[1:]
    for unit in (
        client.units.init(0),
        client.units.train([(0, [datum()])]),
        client.units.optim(0),
        client.units.save(0, "mine"),
        client.units.snapshot(0, "mine"),
        client.units.load(0, version, into=1),
        client.units.unload(0),
        client.units.load(0, version),
        client.units.unload(0),
    ):
        await client.done(unit)
        assert trainer.digests()[1:] == others


async def test_layout_beyond_the_trainer_is_refused_before_the_slot_is_touched(rig: Rig):
    trainer, client = rig
    too_wide = type(LAYOUT)()
    too_wide.CopyFrom(LAYOUT)
    too_wide.rank = 9
    assert "rank 9" in await client.refused(client.units.init(0, layout=too_wide))
    nothing = type(LAYOUT)(rank=4, alpha=32.0)
    assert "trains nothing" in await client.refused(client.units.init(0, layout=nothing))
    assert trainer.engine.calls == []
    await client.done(client.units.init(0))
