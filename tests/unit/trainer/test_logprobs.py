"""Log-probabilities against transformers, on every supported shape of model."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from services.common.datum_blocks import Datum
from services.trainer.engine import DatumResult, SlotDatum
from services.trainer.megatron.engine import EngineConfig, MegatronEngine
from tests.evidence.table import Claim, Measurements
from tests.unit.trainer import reference
from tests.unit.trainer.models import BUILDERS
from tests.unit.trainer.rig import ALL, CROSS_ENTROPY, on_slot, randomize, supervised

LENGTHS = (7, 33, 1, 33, 33, 60)
TOLERANCE = 1e-4


def gap(results: list[DatumResult], base: torch.nn.Module, datums: list[Datum]) -> float:
    """Largest difference to transformers over all datums."""
    expected = [reference.target_logprobs(base, datum) for datum in datums]
    assert [result.logprobs.shape for result in results] == [scores.shape for scores in expected]
    return max(float(np.abs(r.logprobs - e).max()) for r, e in zip(results, expected, strict=True))


@pytest.mark.parametrize("name", BUILDERS)
def test_fresh_slot_gives_the_base_models_logprobs_OPT_07(
    name: str, model_dir: Callable[[str], Path], engine_for: Callable[..., MegatronEngine], measured: Measurements
) -> None:
    engine = engine_for(name, micro_batch_tokens=80)
    engine.init_slot(0, ALL, seed=1)
    base = reference.load_base(model_dir(name))
    datums = [supervised(i, length, width=1 + i % 3) for i, length in enumerate(LENGTHS)]
    results = engine.run_pass(on_slot(0, *datums), CROSS_ENTROPY, backward=False)
    # The control: a model of other weights (the tied and the untied variant of one architecture).
    other = reference.load_base(model_dir(name.removesuffix("-tied") if name.endswith("-tied") else f"{name}-tied"))
    measured(
        Claim.LOGPROBS,
        f"tiny {name}",
        gap(results, base, datums),
        within=TOLERANCE,
        another_model=gap(results, other, datums),
    )
    for datum, result in zip(datums, results, strict=True):
        expected = reference.target_logprobs(base, datum)
        assert result.loss == pytest.approx(float(-(expected * datum.fields["weights"]).sum()), rel=1e-4, abs=1e-3)


@pytest.mark.parametrize("budget", [1, 40_000, 1 << 26])
def test_chunks_of_logits_change_nothing(engine_for: Callable[..., MegatronEngine], budget: int) -> None:
    datums = [supervised(i, length, width=2) for i, length in enumerate((50, 31, 70))]
    outcomes = []
    for memory in (budget, 1 << 30):
        engine = engine_for("qwen3", logits_memory_bytes=memory)
        randomize(engine, 0, ALL, seed=3)
        randomize(engine, 1, ALL, seed=4)
        items = [SlotDatum(0, datums[0]), SlotDatum(0, datums[1]), SlotDatum(1, datums[2])]
        results = engine.run_pass(items, CROSS_ENTROPY, backward=True)
        outcomes.append((results, [engine.window_gradients(slot) for slot in (0, 1)]))
    (chunked, chunked_gradients), (whole, whole_gradients) = outcomes
    for left, right in zip(chunked, whole, strict=True):
        assert np.abs(left.logprobs - right.logprobs).max() <= 1e-5
    for left_gradient, right_gradient in zip(chunked_gradients, whole_gradients, strict=True):
        for name, value in right_gradient.items():
            torch.testing.assert_close(left_gradient[name], value, rtol=1e-4, atol=1e-5 * float(value.abs().max()))


def test_repeated_unit_is_bitwise_equal(engine: MegatronEngine) -> None:
    randomize(engine, 0, ALL, seed=3)
    items = on_slot(0, *[supervised(i, 20 + i) for i in range(5)])
    outcomes = []
    for _ in range(2):
        results = engine.run_pass(items, CROSS_ENTROPY, backward=True)
        outcomes.append((results, engine.slot_digest(0)))
        engine.restore(0, engine.capture(0, moments=False))
    assert outcomes[0][1] == outcomes[1][1]
    for left, right in zip(outcomes[0][0], outcomes[1][0], strict=True):
        assert left.loss == right.loss
        assert np.array_equal(left.logprobs, right.logprobs)


@pytest.mark.engine
def test_default_model_matches_transformers(default_model: Path, measured: Measurements) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = MegatronEngine(EngineConfig(default_model))
    engine.init_slot(0, ALL, seed=1)
    base = reference.load_base(default_model)
    datums = [supervised(i, length, vocab=engine.facts.vocab) for i, length in enumerate((40, 12))]
    results = engine.run_pass(on_slot(0, *datums), CROSS_ENTROPY, backward=False)
    exact = gap(results, base, datums)
    base.model.layers[7].mlp.up_proj.weight.data.mul_(1.01)
    control = gap(results, base, datums)
    measured(Claim.LOGPROBS, "SmolLM2-135M", exact, within=TOLERANCE, one_matrix_off_by_a_hundredth=control)
