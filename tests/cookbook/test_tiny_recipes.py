"""Recipes that learn even on random weights: losses fall, preferences and teachers are followed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cookbook.recipe import Kitchen, series
from tests.cookbook.results import Results, Table

pytestmark = [pytest.mark.cookbook, pytest.mark.engine, pytest.mark.timeout(900)]
CHAT = ("model_name=Qwen/Qwen3.5-9B-Base", "renderer_name=role_colon")
SMALL = ("learning_rate=3e-3", "lora_rank=16")


@pytest.fixture
def table(tiny: Kitchen, results: Results, tmp_path: Path) -> Table:
    return Table(tiny, results, tmp_path)


def falls(values: Sequence[float], to: float) -> str:
    assert values[-1] < to * values[0], values
    return f"{values[0]:.3g} -> {values[-1]:.3g}"


def checkpoints(log_path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (log_path / "checkpoints.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def teacher(tiny: Kitchen, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A sampler checkpoint that differs from the base model: a few supervised steps."""
    log_path = tmp_path_factory.mktemp("teacher") / "run"
    tiny.cook("chat_sl.train", *CHAT, *SMALL, "dataset=chats.jsonl", "batch_size=16", "max_length=512",
              "max_steps=6", log_path=log_path)  # fmt: skip
    return checkpoints(log_path)[-1]["sampler_path"]


def test_sl_basic_lowers_its_loss_LAYER_04(table: Table) -> None:
    metrics = table.run("sl_basic", *SMALL, "max_steps=8", "eval_every=4")
    nll = falls(series(metrics, "train_mean_nll"), to=0.85)
    held_out = falls(series(metrics, "test/nll"), to=0.95)
    table.note(f"train NLL {nll}, test NLL {held_out}")


def test_sl_loop_lowers_its_loss(table: Table) -> None:
    metrics = table.run("sl_loop", *SMALL, "batch_size=16", "max_length=512", "max_steps=8")
    table.note(f"train NLL {falls(series(metrics, 'train_mean_nll'), to=0.85)}")


def test_chat_sl_resumes_from_the_checkpoint_a_killed_run_leaves(table: Table) -> None:
    """The recipe submits the next batch before it saves: the checkpoint of step 2 has seen batches 0 to 3."""
    options = (*CHAT, *SMALL, "dataset=chats.jsonl", "batch_size=16", "max_length=512", "lr_schedule=constant")
    options = (*options, "eval_every=0", "save_every=2", "behavior_if_log_dir_exists=resume")
    first = series(table.run("chat_sl.train", *options, "max_steps=4"), "train_mean_nll")
    # A killed run leaves its periodic checkpoints, not the one of a finished run.
    kept = [entry for entry in checkpoints(table.log_path) if entry["name"] != "final"]
    (table.log_path / "checkpoints.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in kept))
    metrics = table.run("chat_sl.train", *options, "max_steps=8")
    assert [row["step"] for row in metrics] == list(range(8))
    nll, start = series(metrics, "train_mean_nll"), int(kept[-1]["batch"])
    assert nll[:start] == first[:start]
    assert nll[start] < first[-1]  # a run from the start would be at first[0] again
    table.note(f"resumed at step {start}: NLL {falls(nll, to=0.85)}")


def test_prompt_distillation_lowers_its_loss(table: Table) -> None:
    options = ("file_path=chats.jsonl", "batch_size=16", "max_length=512", "max_steps=8", "eval_every=0")
    metrics = table.run("prompt_distillation.train", *CHAT, *SMALL, *options)
    table.note(f"train NLL {falls(series(metrics, 'train_mean_nll'), to=0.85)}")


def test_dpo_learns_the_preference(table: Table) -> None:
    options = ("renderer_name=role_colon", "batch_size=16", "max_length=512", "learning_rate=1e-3", "max_steps=6")
    metrics = table.run("preference.dpo.train", *options)
    loss, margin = series(metrics, "dpo_loss"), series(metrics, "margin")
    assert loss[0] == pytest.approx(0.6931, abs=1e-3)  # log 2: policy and reference are the same model at first
    assert margin[-1] > 1.0
    table.note(f"DPO loss {falls(loss, to=0.2)}, margin {margin[0]:.1g} -> {margin[-1]:.3g}")


def test_on_policy_distillation_approaches_its_teacher(table: Table, teacher: str) -> None:
    options = ("groups_per_batch=8", "group_size=8", "max_tokens=16", "learning_rate=3e-3", "lora_rank=16")
    metrics = table.run(
        "distillation.on_policy_distillation", *CHAT, *options, "teacher_model=Qwen/Qwen3.5-9B-Base",
        f"teacher_checkpoint={teacher}", "max_steps=8", "eval_every=0",
    )  # fmt: skip
    table.note(f"KL to the teacher {falls(series(metrics, 'teacher_kl'), to=0.8)}")


def test_off_policy_topk_distillation_lowers_its_loss(table: Table, teacher: str) -> None:
    script = str(Path(__file__).with_name("off_policy_topk.py"))
    metrics = table.run(script, f"teacher={teacher}", "chats=chats.jsonl", "max_steps=8")
    table.note(f"train/loss:sum {falls(series(metrics, 'train/loss:sum'), to=0.98)}")


def test_rl_basic_finishes_its_2048_concurrent_samples_LAYER_04(table: Table) -> None:
    metrics = table.run("rl_basic", "learning_rate=1e-3", "max_tokens=16", "max_steps=1")
    assert metrics[0]["env/all/total_episodes"] == 2048
    difference = abs(metrics[0]["optim/kl_sample_train_v2"])
    assert difference < 1e-3
    table.note(f"2,048 samples at once in {metrics[0]['time/sampling']:.0f} s; sampler/trainer KL {difference:.1e}")


def test_guess_number_plays_ten_turns(table: Table) -> None:
    options = ("group_size=4", "batch_size=4", "max_tokens=8", "learning_rate=1e-3", "max_steps=2", "eval_every=0")
    metrics = table.run("multiplayer_rl.guess_number.train", *CHAT, *options)
    turns = metrics[0]["env/all/turns_per_episode"]
    difference = max(abs(value) for value in series(metrics, "optim/kl_sample_train_v2"))
    assert turns > 1
    assert difference < 1e-3
    table.note(f"{turns:.0f} turns an episode; sampler/trainer KL {difference:.1e}")
