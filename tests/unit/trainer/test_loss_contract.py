"""What holds for every loss of the engine."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from services.common.datum_blocks import Datum
from services.trainer.engine import Loss
from services.trainer.losses import LOSSES, OBJECTIVES
from services.trainer.megatron.engine import MegatronEngine
from tests.unit.trainer import reference
from tests.unit.trainer.rig import ALL, CROSS_ENTROPY, on_slot, policy, randomize, same, supervised


def lessons(engine: MegatronEngine, loss: str, count: int = 3) -> list[Datum]:
    plain = [supervised(i, 8 + 5 * i) for i in range(count)]
    if loss == "cross_entropy":
        return plain
    scores = engine.run_pass(on_slot(0, *plain), CROSS_ENTROPY, backward=False)
    return [policy(i, one.length, scores[i].logprobs) for i, one in enumerate(plain)]


@pytest.fixture
def adapted(engine: MegatronEngine) -> MegatronEngine:
    randomize(engine, 0, ALL, seed=6)
    return engine


@pytest.mark.parametrize("loss", LOSSES)
def test_forward_only_answers_what_training_answers_and_touches_no_gradient_LOSS_07(
    adapted: MegatronEngine, loss: str
) -> None:
    datums = lessons(adapted, loss)
    adapted.run_pass(on_slot(0, datums[0]), Loss(loss, {}), backward=True)
    before, window = adapted.slot_digest(0), adapted.window_gradients(0)
    looked = adapted.run_pass(on_slot(0, *datums), Loss(loss, {}), backward=False)
    assert adapted.slot_digest(0) == before
    trained = adapted.run_pass(on_slot(0, *datums), Loss(loss, {}), backward=True)
    assert [one.loss for one in looked] == pytest.approx([one.loss for one in trained], rel=1e-6)
    assert all(np.array_equal(a.logprobs, b.logprobs) for a, b in zip(looked, trained, strict=True))
    # The objective has a gradient: none of this holds because nothing happens (LOSS-14).
    assert not same(adapted.window_gradients(0), window)
    assert max(float(value.norm()) for value in window.values()) > 0


@pytest.mark.parametrize("loss", LOSSES)
def test_a_repeated_pass_is_the_same_to_the_bit_without_dropout_LOSS_16(
    engine_for: Callable[..., MegatronEngine], loss: str
) -> None:
    engine = engine_for("qwen3")
    randomize(engine, 0, ALL, seed=7)
    datums = on_slot(0, *lessons(engine, loss))
    runs = []
    for _ in range(2):
        results = engine.run_pass(datums, Loss(loss, {}), backward=True)
        runs.append((engine.window_gradients(0), [one.loss for one in results]))
        engine.restore(0, engine.capture(0, moments=True))  # empties the window
    assert same(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]


@pytest.mark.parametrize("loss", LOSSES)
def test_every_position_is_answered_once_prompt_and_unweighted_ones_too_LOSS_08(
    engine_for: Callable[..., MegatronEngine], loss: str
) -> None:
    """Also over several micro-batches; nothing of autograd stays attached."""
    engine = engine_for("qwen3", micro_batch_tokens=16)
    randomize(engine, 0, ALL, seed=8)
    datums = lessons(engine, loss, count=5)
    results = engine.run_pass(on_slot(0, *datums), Loss(loss, {}), backward=True)
    scored = engine.run_pass(on_slot(0, *datums), Loss(loss, {}), backward=False)
    assert [one.logprobs.shape for one in results] == [(d.length, 1) for d in datums]
    assert all(isinstance(one.logprobs, np.ndarray) and (one.logprobs < 0).all() for one in results)
    assert all(np.allclose(a.logprobs, b.logprobs) for a, b in zip(results, scored, strict=True))


def test_each_pass_computes_the_loss_it_names_LOSS_13(adapted: MegatronEngine) -> None:
    """One engine, one datum, every loss in turn and back again."""
    (datum,) = lessons(adapted, "ppo", count=1)
    full = Datum(datum.tokens, datum.targets, {**datum.fields, "weights": datum.fields["advantages"]})

    def value(name: str) -> float:
        fields = {field: full.fields[field] for field in OBJECTIVES[name].fields}
        one = on_slot(0, Datum(full.tokens, full.targets, fields))
        return adapted.run_pass(one, Loss(name, {}), backward=False)[0].loss

    first = {name: value(name) for name in LOSSES}
    assert len({round(loss, 5) for loss in first.values()}) == len(LOSSES)
    assert {name: value(name) for name in reversed(LOSSES)} == first


def test_targets_are_labels_of_their_own_not_the_input_shifted_VAL_04(adapted: MegatronEngine) -> None:
    """Input 5 6 7 with target 9 at position 1: the log-probability of 9 after 5 6."""
    inputs = np.array([5, 6, 7], np.int32)
    asked = Datum(inputs, np.array([[6], [9], [8]], np.int32), {"weights": np.ones((3, 1), np.float32)})
    every = np.tile(np.arange(512, dtype=np.int32), (3, 1))
    table = Datum(inputs, every, {"weights": np.zeros(every.shape, np.float32)})
    answer = adapted.run_pass(on_slot(0, asked), CROSS_ENTROPY, backward=False)[0].logprobs[:, 0]
    whole = adapted.run_pass(on_slot(0, table), CROSS_ENTROPY, backward=False)[0].logprobs
    assert np.allclose(answer, [whole[0, 6], whole[1, 9], whole[2, 8]], atol=1e-6)
    assert abs(float(np.exp(whole.astype(np.float64)).sum()) - 3) < 1e-4
    assert not np.isclose(answer[1], whole[1, 7])


def test_every_loss_is_compared_with_a_reference_where_it_acts_LOSS_14() -> None:
    """No objective is proven by zero masks only: the tests' datums give each of them a gradient."""
    scores = np.full((12, 1), -1.5, np.float32)
    for name in LOSSES:
        datum = supervised(1, 12) if name == "cross_entropy" else policy(1, 12, scores)
        lp = torch.from_numpy(scores.copy()).requires_grad_()
        fields = {key: torch.from_numpy(value) for key, value in datum.fields.items()}
        losses = reference.position_losses(name, lp, fields, {})
        (gradient,) = torch.autograd.grad(losses.sum(), lp)
        assert float(gradient.abs().sum()) > 0.1, name
