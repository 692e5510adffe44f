"""The comparison of real runs: what it lets pass, and that it finds what it must."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tinkermesh.wire.v1 import wire_pb2 as wire

from services.common.store import public_directory
from services.common.tinker_path import parse_tinker_path
from tests.chaos.companies import STRANGER, Companies, companies
from tests.chaos.compare import LOGPROBS, WEIGHTS, Comparison, compare
from tests.chaos.history import Command, History, ModelPlan
from tests.chaos.player import Done, ModelRun, Run

COMMANDS = (
    Command("fb", 1),
    Command("optim", 2),
    Command("fb", 3),
    Command("forward", 4),
    Command("optim", 5),
    Command("save", 6, name="end"),
)
HISTORY = History(0, 1, (ModelPlan(0, 0, 4, 1, COMMANDS),))
SESSIONS = ("00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002")
ALONE: Companies = {(0, 1): {((0, 1, 0),)}, (0, 3): {((0, 3, 0),)}, (0, 4): {((0, 4, 0),)}}
TOGETHER: Companies = {**ALONE, (0, 3): {((0, 3, 0), (1, 1, 1))}}
Change = Callable[[str, np.ndarray], np.ndarray]


def untouched(_what: str, values: np.ndarray) -> np.ndarray:
    return values


def times(factor: float, only: str) -> Change:
    return lambda what, values: values * np.float32(factor) if what == only else values


def played(store: Path, session: str, change: Change = untouched) -> Run:
    """One model's answers and checkpoint; `change` is applied to `logprobs <seq>`, `norm <seq>` and tensors by kind."""
    random = np.random.default_rng(7)
    model = ModelRun(HISTORY.models[0], model_id=f"{session}:train:0", session_id=session)
    for command in COMMANDS:
        done = Done(command, request_id=f"{session} {command.seq}", body=b"{}")
        if command.kind in ("fb", "forward"):
            values = change(f"logprobs {command.seq}", random.normal(-4, 1, 64).astype(np.float32))
            output = wire.ForwardBackwardOutput()
            output.loss_fn_outputs.add().fields["logprobs"].data = values.tobytes()
            done.body = output.SerializeToString()
        elif command.kind == "optim":
            norm = change(f"norm {command.seq}", np.ones(1, np.float32))
            done.body = json.dumps({"metrics": {"grad_norm": float(norm[0])}}).encode()
        model.commands.append(done)
    directory = store / public_directory(parse_tinker_path(model.path("end")))
    directory.mkdir(parents=True)
    tensors = {name: random.normal(0, 1, (8, 8)).astype(np.float32) for name in ("x.lora_A.weight", "x.lora_B.weight")}
    save_file({n: change("weights", t) for n, t in tensors.items()}, directory / "adapter_model.safetensors")
    moments = {f"{kind}.{n}": change(kind, t) for kind in ("exp_avg", "exp_avg_sq") for n, t in tensors.items()}
    save_file(moments, directory / "optimizer.safetensors")
    (directory / "meta.json").write_text(json.dumps({"optimizer_step": 2}))
    return Run(HISTORY, models=[model])


def compared(store: Path, change: Change, stormy: Companies = ALONE) -> Comparison:
    return compare(played(store, SESSIONS[0]), played(store, SESSIONS[1], change), store, (ALONE, stormy))


def test_equal_runs_are_equal_and_all_of_it_was_demanded(tmp_path: Path) -> None:
    made = compared(tmp_path, untouched)
    assert (made.violations, made.within, made.bitwise, made.demanded) == ([], 0, 8, 8)


def test_after_another_company_the_tolerances_hold_and_before_it_bits(tmp_path: Path) -> None:
    made = compared(tmp_path, times(1 + LOGPROBS / 4, "logprobs 3"), TOGETHER)
    assert made.violations == []
    assert (made.within, made.demanded) == (1, 2)  # the first batch and its step


@pytest.mark.parametrize("what", ["logprobs 1", "norm 2", "logprobs 4", "weights", "exp_avg", "exp_avg_sq"])
def test_the_last_bit_counts_where_the_company_was_the_same(tmp_path: Path, what: str) -> None:
    made = compared(tmp_path, times(1 + 2**-22, what))
    assert made.violations
    assert all("all passes had the same company" in text for text in made.violations), made.violations


@pytest.mark.parametrize(
    ("what", "tolerance"),
    [("logprobs 3", 1e-6), ("norm 5", 1e-6), ("weights", 1e-3), ("exp_avg", 1e-3), ("exp_avg_sq", 1e-3)],
)
def test_beyond_the_designs_tolerance_nothing_passes(tmp_path: Path, what: str, tolerance: float) -> None:
    """Negative control: ten times as much is found, half as much is let through."""
    assert compared(tmp_path / "far", times(1 + 10 * tolerance, what), TOGETHER).violations
    assert compared(tmp_path / "near", times(1 + tolerance / 2, what), TOGETHER).violations == []


def test_a_lost_step_is_found(tmp_path: Path) -> None:
    def lost(what: str, values: np.ndarray) -> np.ndarray:
        return values + np.float32(2 * WEIGHTS) * np.sign(values) if what == "weights" else values

    assert compared(tmp_path, lost, TOGETHER).violations


def test_companies_are_read_from_the_log_of_every_life_of_the_trainer(tmp_path: Path) -> None:
    run = played(tmp_path, SESSIONS[0])
    first, third = (f"{SESSIONS[0]} {seq}".replace(" ", "_") for seq in (1, 3))
    for done in run.models[0].commands:
        done.request_id = done.request_id.replace(" ", "_")

    def line(requests: str, slots: list[int]) -> str:
        return json.dumps({"message": "pass: 0.020 s", "request_id": requests, "slots": slots})

    log = [
        line(first, [0]),
        line(f"{third} somebody-elses", [0, 1]),
        '{"message": "pass: 0.0',
        line(first, [0]),
        line(f"{third} {first}", [1, 1]),
        json.dumps({"message": "optim: 0.1 s", "request_id": first, "slots": [0]}),
    ]
    found = companies(run, "\n".join(log))
    assert found[0, 1] == {((0, 1, 0),), ((0, 3, 1), (0, 1, 1))}
    assert found[0, 3] == {((0, 3, 0), (*STRANGER, 1)), ((0, 3, 1), (0, 1, 1))}
