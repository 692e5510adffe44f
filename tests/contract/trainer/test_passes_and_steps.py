"""What a pass and an optimizer step answer, and what a failure leaves behind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tinkermesh.v1 import trainer_pb2 as pb
from tinkermesh.v1.types_pb2 import FAILURE_CATEGORY_SERVER, FAILURE_CATEGORY_USER

from services.common.errors import InvalidInput
from services.trainer.engine import StepResult
from services.trainer.memory_limit import MemoryEstimate
from tests.contract.trainer.harness import Rig, datum, train


async def test_outcomes_and_logprobs_are_in_item_order_FAIL_09(rig: Rig):
    _, client = rig
    for slot in (0, 2):
        await client.done(client.units.init(slot, seed=slot))
    items = [(0, [datum(5, 1), datum(3, 2)]), (2, [datum(7, 3)])]
    outcome, scores = await client.execute(client.units.train(items))
    assert len(getattr(outcome, "pass").datums) == 3
    alone = b"".join([(await client.execute(client.units.train([(s, [d])])))[1] for s, ds in items for d in ds])
    assert scores == alone


async def test_forward_only_changes_nothing(rig: Rig):
    trainer, client = rig
    await client.done(client.units.init(0))
    before = trainer.digests()
    await client.done(client.units.train([(0, [datum()])], backward=False))
    assert trainer.digests() == before


async def test_bad_datum_is_refused_alone_and_the_rest_contributes(rig: Rig):
    trainer, client = rig
    for slot in (0, 1):
        await client.done(client.units.init(slot))
    outside, too_long = datum(4), datum(65)
    outside.tokens[1] = 32
    outcome, scores = await client.execute(client.units.train([(0, [datum(5), outside]), (1, [too_long, datum(3)])]))
    found = getattr(outcome, "pass").datums
    assert [d.HasField("failure") for d in found] == [False, True, True, False]
    assert found[1].failure.category == FAILURE_CATEGORY_USER
    assert "outside 0..31" in found[1].failure.message
    assert "65 tokens" in found[2].failure.message
    assert len(scores) == 4 * 8
    together = trainer.digests()
    for slot in (0, 1):
        await client.done(client.units.unload(slot))
        await client.done(client.units.init(slot))
    await client.done(client.units.train([(0, [datum(5)]), (1, [datum(3)])], load=2))
    assert trainer.digests() == together


async def test_a_replay_is_not_refused_by_another_lifes_memory_estimate_ADD_05(rig: Rig):
    trainer, client = rig
    await client.done(client.units.init(0))
    known = trainer.leader._executor
    executor = replace(known, limits=replace(known.limits, memory=MemoryEstimate(0.0, 1.0, 4)))
    for replay in (False, True):
        unit, payload = client.units.train([(0, [datum(5), datum(3)])])
        unit.replay = replay
        outcome = executor.run(unit, payload).outcome
        assert [d.HasField("failure") for d in getattr(outcome, "pass").datums] == [not replay, False]


async def test_datum_the_engine_refuses_fails_alone(rig: Rig):
    trainer, client = rig
    await client.done(client.units.init(0))
    outcome, _ = await client.execute(client.units.train([(0, [datum(), datum(weight=float("inf"))])]))
    assert [d.failure.message for d in getattr(outcome, "pass").datums] == ["", "loss is not finite"]
    assert trainer.engine.window_open(0)


@pytest.mark.parametrize(
    ("error", "category", "text"),
    [
        (InvalidInput("loss_fn: no such loss"), FAILURE_CATEGORY_USER, "loss_fn: no such loss"),
        (MemoryError("9 GiB"), FAILURE_CATEGORY_SERVER, "ran out of memory"),
        (KeyError("secret prompt of slot 1"), FAILURE_CATEGORY_SERVER, "internal error (KeyError)"),
    ],
)
async def test_failed_pass_of_two_tenants_is_one_typed_failure_without_its_text_or_an_effect_SEC_11(
    rig: Rig, error, category, text, caplog
):
    trainer, client = rig
    for slot in (0, 1):
        await client.done(client.units.init(slot))
    before = trainer.digests()
    trainer.engine.broken["run_pass"] = error
    outcome, scores = await client.execute(client.units.train([(0, [datum()]), (1, [datum()])]))
    assert outcome.failure.category == category
    assert text in outcome.failure.message
    assert "secret" not in outcome.failure.message
    assert scores == b""
    assert not outcome.HasField("pass")
    assert trainer.digests() == before
    assert ("Traceback" in caplog.text) == isinstance(error, KeyError)
    trainer.engine.broken.clear()
    await client.done(client.units.train([(0, [datum()])]))


async def test_pass_for_another_load_of_the_slot_is_refused_whole(rig: Rig):
    trainer, client = rig
    await client.done(client.units.init(0))
    for unit, text in (
        (client.units.train([(0, [datum()])], load=2), "holds load 1"),
        (client.units.train([(1, [datum()])]), "slot 1 is empty"),
        (client.units.train([(9, [datum()])]), "slot 9 does not exist"),
        (client.units.train([(1, [datum()]), (0, [datum()])]), "not sorted"),
    ):
        assert text in await client.refused(unit)
    assert trainer.engine.passes == 0


async def test_merged_steps_equal_single_ones_and_carry_their_request_PACK_06(rig: Rig):
    trainer, client = rig
    for slot in (0, 1, 2, 3):
        await client.done(client.units.init(slot, seed=slot % 2))
        await client.done(client.units.train([(slot, [datum(seed=slot % 2)])]))
    merged = await client.done(client.units.optim(0, 1))
    assert [(s.slot, s.request_id, s.load_number) for s in merged.slots] == [(0, "r0", 1), (1, "r1", 1)]
    assert all(np.isfinite(s.metrics["grad_norm"]) for s in merged.slots)
    await client.done(client.units.optim(3))
    await client.done(client.units.optim(2))
    digests = trainer.digests()
    assert digests[:2] == digests[2:]


async def test_one_failed_step_of_a_merged_unit_is_told_apart_FAIL_10(rig: Rig, monkeypatch):
    trainer, client = rig
    for slot in (0, 1):
        await client.done(client.units.init(slot))
    plain = trainer.engine.optim_steps
    monkeypatch.setattr(
        trainer.engine, "optim_steps", lambda steps: {**plain(steps), 1: StepResult({}, "allreduce died")}
    )
    outcome, _ = await client.execute(client.units.optim(0, 1))
    assert not outcome.HasField("failure")
    assert [s.failure.message for s in outcome.slots] == ["", "allreduce died"]


async def test_skipped_step_succeeds_and_does_not_advance_the_clock_OPT_04_FAIL_11(rig: Rig):
    trainer, client = rig
    await client.done(client.units.init(0))
    await client.done(client.units.train([(0, [datum()])]))
    next(iter(trainer.engine.slots[0].window.values())).fill_(float("nan"))
    outcome = await client.done(client.units.optim(0))
    assert outcome.slots[0].metrics["skipped_nonfinite"] == 1
    state = (await client.stub.Describe(pb.DescribeTrainerRequest())).slots[0]
    assert (state.optimizer_step, state.window_open) == (0, False)


async def test_a_replayed_skip_empties_the_window_and_moves_nothing_else_OPT_04_ADD_05(rig: Rig):
    """A merged unit of a real step and a skip: the skipped slot's weights, moments and clock stay."""
    trainer, client = rig
    for slot in (0, 1):
        await client.done(client.units.init(slot))
        await train(client, slot, 1)
    before = trainer.digests()
    await client.done(client.units.train([(0, [datum()]), (1, [datum()])]))
    unit = client.units.optim(0, 1)
    unit.optim.steps[0].skip = True
    outcome = await client.done(unit)
    assert [dict(slot.metrics).get("skipped_nonfinite") for slot in outcome.slots] == [1.0, None]
    assert [slot.request_id for slot in outcome.slots] == ["r0", "r1"]
    assert trainer.digests()[0] == before[0]
    assert trainer.digests()[1] != before[1]
    states = (await client.stub.Describe(pb.DescribeTrainerRequest())).slots
    assert [(s.optimizer_step, s.window_open) for s in states[:2]] == [(1, False), (2, False)]
    unit = client.units.optim(0)
    unit.optim.steps[0].skip = True
    await client.done(unit)  # nothing but skips: the engine is not asked to step
    assert trainer.digests()[0] == before[0]


async def test_describe_tells_facts_and_slots(rig: Rig):
    _, client = rig
    await client.done(client.units.init(1))
    await client.done(client.units.train([(1, [datum()])]))
    told = await client.stub.Describe(pb.DescribeTrainerRequest())
    assert (told.facts.pool, told.facts.vocab_size, told.facts.max_context, told.facts.slots) == ("stub", 32, 64, 4)
    assert [s.loaded for s in told.slots] == [False, True, False, False]
    assert (told.slots[1].load_number, told.slots[1].window_open, told.slots[1].layout.rank) == (1, True, 4)
    assert told.world_size == 1
    await client.done(client.units.optim(1))
    state = (await client.stub.Describe(pb.DescribeTrainerRequest())).slots[1]
    assert (state.optimizer_step, state.window_open) == (1, False)
