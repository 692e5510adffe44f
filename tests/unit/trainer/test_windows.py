"""OPT-01, OPT-14, FAIL-13, LOSS-07, ADD-03: what a pass may and may not touch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from services.common.errors import ContractViolation, InvalidInput
from services.trainer.engine import Loss, SlotDatum
from services.trainer.megatron.engine import MegatronEngine
from tests.unit.trainer.rig import ADAM, ALL, CROSS_ENTROPY, digests, layout, on_slot, randomize, scaled, supervised

SLOTS = (0, 1, 2)


@pytest.fixture
def filled(engine_for: Callable[..., MegatronEngine]) -> MegatronEngine:
    """Three slots; 0 and 1 have open windows."""
    engine = engine_for("qwen3", micro_batch_tokens=40)
    for slot in SLOTS:
        randomize(engine, slot, layout(4 + slot), seed=slot)
    items = [SlotDatum(0, supervised(1, 20)), SlotDatum(1, supervised(2, 25))]
    engine.run_pass(items, CROSS_ENTROPY, backward=True)
    return engine


def test_forward_only_leaves_every_window_bitwise_LOSS_07(filled: MegatronEngine) -> None:
    before = digests(filled, SLOTS)
    results = filled.run_pass([SlotDatum(slot, supervised(3, 12)) for slot in SLOTS], CROSS_ENTROPY, backward=False)
    assert digests(filled, SLOTS) == before
    assert all(result.loss != 0 for result in results)
    assert [filled.window_open(slot) for slot in SLOTS] == [True, True, False]


def test_forward_gives_the_losses_of_forward_backward(filled: MegatronEngine) -> None:
    items = on_slot(2, supervised(4, 30), supervised(5, 30))
    forward = filled.run_pass(items, CROSS_ENTROPY, backward=False)
    backward = filled.run_pass(items, CROSS_ENTROPY, backward=True)
    for left, right in zip(forward, backward, strict=True):
        assert left.loss == right.loss
        assert np.array_equal(left.logprobs, right.logprobs)


def test_pass_that_raises_midway_leaves_every_window_bitwise_OPT_14(
    filled: MegatronEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = digests(filled, SLOTS)
    model = filled._passes._model
    calls = []
    genuine = model.hidden_states

    def fail_at_third(tokens: object, packed: object) -> object:
        calls.append(tokens)
        if len(calls) == 3:
            raise MemoryError("no memory for the third micro-batch")
        return genuine(tokens, packed)

    monkeypatch.setattr(model, "hidden_states", fail_at_third)
    items = [SlotDatum(slot, supervised(6 + i, 30)) for slot in SLOTS for i in range(2)]
    with pytest.raises(MemoryError):
        filled.run_pass(items, CROSS_ENTROPY, backward=True)
    assert len(calls) == 3
    assert digests(filled, SLOTS) == before
    monkeypatch.setattr(model, "hidden_states", genuine)
    filled.run_pass(items, CROSS_ENTROPY, backward=True)
    assert digests(filled, SLOTS) != before


@pytest.mark.parametrize("backward", [True, False])
def test_datum_with_non_finite_loss_is_as_if_it_had_never_been_sent_FAIL_13(
    engine_for: Callable[..., MegatronEngine], backward: bool
) -> None:
    good = [SlotDatum(slot, supervised(20 + 3 * slot + i, 25)) for slot in SLOTS for i in range(2)]
    poison = SlotDatum(1, scaled(supervised(50, 25), float("inf")))
    outcomes = []
    for items in (good, [*good[:3], poison, *good[3:]]):
        engine = engine_for("qwen3", micro_batch_tokens=60)
        for slot in SLOTS:
            randomize(engine, slot, layout(4 + slot), seed=slot)
        engine.run_pass(on_slot(0, supervised(1, 20)), CROSS_ENTROPY, backward=True)
        results = engine.run_pass(items, CROSS_ENTROPY, backward=backward)
        outcomes.append(([r for r in results if not r.failure], digests(engine, SLOTS), results))
    (clean, clean_digests, _), (rest, rest_digests, results) = outcomes
    assert [bool(result.failure) for result in results] == [False] * 3 + [True] + [False] * 3
    assert "not finite" in results[3].failure
    assert rest_digests == clean_digests
    for left, right in zip(clean, rest, strict=True):
        assert left.loss == right.loss
        assert np.array_equal(left.logprobs, right.logprobs)


def test_slot_whose_datums_all_fail_keeps_its_window(filled: MegatronEngine) -> None:
    before = digests(filled, SLOTS)
    poison = scaled(supervised(50, 25), float("nan"))
    results = filled.run_pass([SlotDatum(0, poison), SlotDatum(2, poison)], CROSS_ENTROPY, backward=True)
    assert all(result.failure for result in results)
    assert digests(filled, SLOTS) == before


def test_token_outside_the_vocabulary_fails_only_its_datum(filled: MegatronEngine) -> None:
    bad = supervised(7, 10)
    bad = replace(bad, targets=bad.targets + 512)
    results = filled.run_pass([SlotDatum(0, bad), SlotDatum(1, supervised(8, 10))], CROSS_ENTROPY, backward=True)
    assert "target_tokens" in results[0].failure
    assert not results[1].failure


def test_windows_add_up_until_the_step_OPT_01(engine_for: Callable[..., MegatronEngine]) -> None:
    first, second = supervised(1, 20), supervised(2, 25)
    outcomes = []
    for interleaved in (True, False):
        engine = engine_for("qwen3")
        for slot in (0, 1):
            randomize(engine, slot, ALL, seed=slot)
        for datum in (first, second):
            engine.run_pass(on_slot(0, datum), CROSS_ENTROPY, backward=True)
            if interleaved:
                engine.run_pass(on_slot(1, datum), CROSS_ENTROPY, backward=True)
                engine.optim_steps([(1, ADAM)])
        engine.optim_steps([(0, ADAM)])
        outcomes.append(engine.slot_digest(0))
        assert not engine.window_open(0)
    assert outcomes[0] == outcomes[1]


def test_operations_on_one_slot_change_no_byte_of_the_others_ADD_03(filled: MegatronEngine) -> None:
    others = (0, 1)
    before = digests(filled, others)
    image = filled.capture(2, moments=True)
    for operation in (
        lambda: filled.init_slot(2, layout(3), seed=9),
        lambda: filled.restore(2, image),
        lambda: filled.run_pass(on_slot(2, supervised(3, 9)), CROSS_ENTROPY, backward=True),
        lambda: filled.capture(2, moments=True),
        lambda: filled.optim_steps([(2, ADAM)]),
        lambda: filled.clear_slot(2),
    ):
        operation()
        assert digests(filled, others) == before
    assert filled.slot_digest(2) not in before.values()


def test_a_capture_is_one_copy_that_later_steps_do_not_touch_CKPT_19(filled: MegatronEngine) -> None:
    image = filled.capture(2, moments=True)
    states = (image.weights, image.exp_avg, image.exp_avg_sq)
    for state in states:
        assert len({tensor.untyped_storage().data_ptr() for tensor in state.values()}) == 1
    before = [{name: tensor.clone() for name, tensor in state.items()} for state in states]
    filled.run_pass(on_slot(2, supervised(3, 9)), CROSS_ENTROPY, backward=True)
    filled.optim_steps([(2, ADAM)])
    for state, kept in zip(states, before, strict=True):
        assert all(torch.equal(state[name], kept[name]) for name in kept)
    assert not all(torch.equal(one, before[0][name]) for name, one in filled.capture(2, moments=False).weights.items())


def test_empty_or_foreign_slot_is_a_broken_contract(filled: MegatronEngine) -> None:
    with pytest.raises(ContractViolation, match="slot 5"):
        filled.run_pass(on_slot(5, supervised(1, 5)), CROSS_ENTROPY, backward=True)
    with pytest.raises(ContractViolation, match="slot 99"):
        filled.init_slot(99, ALL, seed=1)
    with pytest.raises(ContractViolation, match="rank 64"):
        filled.init_slot(3, layout(64), seed=1)
    with pytest.raises(InvalidInput, match="loss_fn"):
        filled.run_pass(on_slot(0, supervised(1, 5)), Loss("focal", {}), backward=True)
