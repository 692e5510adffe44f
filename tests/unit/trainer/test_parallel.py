"""Tensor and data parallelism on two gloo ranks against one rank, parameter by parameter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from services.common.errors import InvalidInput
from services.trainer.megatron.architecture import read_architecture
from services.trainer.megatron.engine import EngineConfig, MegatronEngine
from services.trainer.megatron.runtime import Parallelism
from tests.evidence.table import Claim, Measurements
from tests.unit.trainer import parallel_scenario as scenario
from tests.unit.trainer.rig import misplaced, relative, same, worst

RESULT_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-5
WEIGHT_TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=["qwen3", "qwen3-moe"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def single(name: str, model_dir: Callable[[str], Path]) -> dict[str, Any]:
    engine = MegatronEngine(EngineConfig(model_dir(name), micro_batch_tokens=30))
    return scenario.run(engine)


@pytest.fixture(scope="module")
def double(
    name: str, model_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[dict[str, Any]]]:
    return scenario.run_on_two_ranks(tmp_path_factory.mktemp("ranks"), model_dir(name))


CLAIMS = {"tp": Claim.TENSOR_PARALLEL, "dp": Claim.DATA_PARALLEL}
both = pytest.mark.parametrize("mode", CLAIMS)
Slots = dict[int, dict[str, torch.Tensor]]


def per_parameter(
    measured: Measurements, mode: str, subject: str, actual: Slots, expected: Slots, tolerance: float
) -> None:
    """The worst parameter of all slots."""
    measured(
        CLAIMS[mode],
        f"{subject}, {sum(map(len, expected.values()))} parameters",
        max(worst(actual[slot], expected[slot]) for slot in expected),
        within=tolerance,
        two_layers_exchanged=min(worst(misplaced(actual[slot]), expected[slot]) for slot in expected),
    )


@both
def test_results_equal_one_rank_on_every_rank_LOSS_10_LOSS_11(
    mode: str, name: str, single: dict[str, Any], double: dict[str, list[dict[str, Any]]], measured: Measurements
) -> None:
    gaps, controls = [], []
    for outcome in double[mode]:
        assert outcome["failures"] == single["failures"] == [False] * 3 + [True] + [False] * 3
        assert outcome["losses"] == pytest.approx(single["losses"], rel=RESULT_TOLERANCE)
        for field in ("logprobs", "after"):
            for index, (actual, expected) in enumerate(zip(outcome[field], single[field], strict=True)):
                if expected.any():
                    gaps.append(relative(actual, expected))
                else:  # the datum that failed
                    assert (field, index) == ("logprobs", 3)
                    assert not actual.any()
        controls.append(relative(outcome["after"][0], single["logprobs"][0]))
    measured(
        CLAIMS[mode],
        f"tiny {name}, logprobs on both ranks",
        max(gaps),
        within=RESULT_TOLERANCE,
        before_the_step=min(controls),
    )


@both
def test_gradient_of_every_parameter_equals_one_rank(
    mode: str, name: str, single: dict[str, Any], double: dict[str, list[dict[str, Any]]], measured: Measurements
) -> None:
    expected = single["gradients"]
    per_parameter(measured, mode, f"tiny {name}, gradients", double[mode][0]["gradients"], expected, GRADIENT_TOLERANCE)
    idle = [parameter for slot in expected.values() for parameter, value in slot.items() if not value.any()]
    assert all(".experts." in parameter for parameter in idle), "only experts can be without a token"
    assert len(idle) < sum(map(len, expected.values())) / 4


@both
@pytest.mark.parametrize("loss", ["gspo", "stable_reinforce", "cross_entropy"])
def test_sequence_losses_and_matrix_targets_equal_one_rank_LOSS_06_LOSS_10(
    mode: str, loss: str, single: dict[str, Any], double: dict[str, list[dict[str, Any]]]
) -> None:
    expected = single["other"][loss]
    for outcome in double[mode]:
        assert outcome["other"][loss]["losses"] == pytest.approx(expected["losses"], rel=RESULT_TOLERANCE)
    assert worst(double[mode][0]["other"][loss]["gradients"], expected["gradients"]) <= GRADIENT_TOLERANCE
    assert all(loss != 0 for loss in expected["losses"])


@both
def test_norms_and_next_weights_equal_one_rank_OPT_05(
    mode: str, name: str, single: dict[str, Any], double: dict[str, list[dict[str, Any]]], measured: Measurements
) -> None:
    for outcome in double[mode]:
        assert outcome["norms"] == pytest.approx(single["norms"], rel=RESULT_TOLERANCE)
    first = double[mode][0]
    assert first["steps"] == single["steps"] == [1, 1, 1]
    per_parameter(measured, mode, f"tiny {name}, next weights", first["weights"], single["weights"], WEIGHT_TOLERANCE)
    per_parameter(measured, mode, f"tiny {name}, moments", first["exp_avg"], single["exp_avg"], GRADIENT_TOLERANCE)


@both
def test_only_rank_0_holds_an_image_SNAP_06(mode: str, double: dict[str, list[dict[str, Any]]]) -> None:
    assert all(double[mode][0]["weights"][slot] for slot in scenario.SHAPES)
    assert not any(double[mode][1]["weights"][slot] for slot in scenario.SHAPES)


@both
def test_non_finite_part_on_one_rank_skips_the_slot_on_all_OPT_06(
    mode: str, single: dict[str, Any], double: dict[str, list[dict[str, Any]]]
) -> None:
    for outcome in (single, *double[mode]):
        assert outcome["skipped"][0] == {"skipped_nonfinite": 1.0}
        assert outcome["skipped"][1]["grad_norm"] == pytest.approx(
            single["skipped"][1]["grad_norm"], rel=WEIGHT_TOLERANCE
        )


@both
def test_initial_weights_do_not_depend_on_the_topology(
    mode: str, single: dict[str, Any], double: dict[str, list[dict[str, Any]]]
) -> None:
    assert same(double[mode][0]["fresh"], single["fresh"])


@pytest.mark.parametrize("mode", ["tp", "dp"])
def test_every_rank_measures_what_a_pass_takes_and_leaves_no_trace(
    mode: str, double: dict[str, list[dict[str, Any]]]
) -> None:
    """The numbers of the other tests come after it."""
    assert [len(one["peaks"]) for one in double[mode]] in ([2, 2], [0, 0])


def test_replicas_hold_bitwise_equal_slots(double: dict[str, list[dict[str, Any]]]) -> None:
    assert double["dp"][0]["digests"] == double["dp"][1]["digests"]


def test_error_of_one_replica_is_raised_on_both_and_changes_nothing_CKPT_08_GAP_13(
    double: dict[str, list[dict[str, Any]]],
) -> None:
    first, second = double["dp"]
    assert first["raised"].startswith("ServerError")
    assert second["raised"] == "MemoryError: only this rank"
    assert first["unchanged"]
    assert second["unchanged"]
    assert first["again"] == second["again"]


def test_what_is_not_supported_is_refused_by_name_LOSS_16_OPT_11_OPT_13(model_dir: Callable[[str], Path]) -> None:
    for field in ("pipeline", "expert", "context"):
        with pytest.raises(InvalidInput, match=f"{field} parallelism is not supported"):
            Parallelism(**{field: 2}).check(2)
    with pytest.raises(InvalidInput, match="number of ranks 2"):
        Parallelism(tensor=2, data=2).check(2)
    with pytest.raises(InvalidInput, match="num_key_value_heads 2"):
        read_architecture(model_dir("qwen3")).check_tensor_parallel(4)
    assert torch.distributed.is_available()
