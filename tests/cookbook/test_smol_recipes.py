"""Reinforcement learning on SmolLM2-135M: the reward of an easy task rises, sampler and trainer agree."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cookbook.recipe import Kitchen, Metrics, series
from tests.cookbook.results import Results, Table

pytestmark = [pytest.mark.cookbook, pytest.mark.engine, pytest.mark.timeout(1200)]
CHAT = ("model_name=Qwen/Qwen3.5-9B-Base", "renderer_name=role_colon")
SUMS = (
    "group_size=8",
    "groups_per_batch=8",
    "max_tokens=16",
    "lora_rank=16",
    "eval_every=0",
    "save_every=0",
)
KL = "optim/kl_sample_train_v2"


def rises(values: Sequence[float], by: float) -> str:
    """The best of the last three steps against the first: rewards of 64 samples are noisy."""
    assert max(values[-3:]) >= values[0] + by, values
    return f"{values[0]:.3f} -> {max(values[-3:]):.3f}"


def agree(metrics: Metrics) -> str:
    worst = max(abs(value) for value in series(metrics, KL))
    assert worst < 1e-3
    return f"sampler/trainer KL {worst:.1e}"


@pytest.fixture
def table(smol: Kitchen, results: Results, tmp_path: Path) -> Table:
    return Table(smol, results, tmp_path)


@pytest.mark.parametrize("loss", ["stable_reinforce", "importance_sampling"])
def test_rl_loop_earns_more_reward(table: Table, loss: str) -> None:
    """Groups of 8: of 64 answers a step about six are right at first, so every step has something to learn from."""
    options = ("group_size=8", "batch_size=8", "max_tokens=16", "lora_rank=16", "learning_rate=5e-4", "max_steps=6")
    metrics = table.run(
        "rl_loop", *options, "save_every=0", *([f"loss_fn={loss}"] if loss != "stable_reinforce" else [])
    )
    table.note(f"{loss}: reward {rises(series(metrics, 'reward/total'), by=0.05)}")


def test_math_rl_sync_earns_more_reward(table: Table) -> None:
    metrics = table.run("math_rl.train", *CHAT, *SUMS, "learning_rate=5e-4", "max_steps=6")
    reward = rises(series(metrics, "env/all/reward/total"), by=0.05)
    table.note(f"stable_reinforce: reward {reward}, {agree(metrics)}")


def test_math_rl_async_learns_off_policy(table: Table) -> None:
    """The share of answers that end as asked is the dense part of the reward; right sums are rare luck at first."""
    metrics = table.run("math_rl.train", *CHAT, *SUMS, "learning_rate=4e-4", "max_steps=12", "max_steps_off_policy=1")
    stale = max(series(metrics, "async/staleness_max"))
    assert stale == 1  # the data really came from older weights
    ended = rises(series(metrics, "env/all/format"), by=0.1)
    reward = series(metrics, "env/all/reward/total")
    table.note(f"{stale:.0f} step off policy: well-formed answers {ended}, reward {reward[0]:.3f} -> {reward[-1]:.3f}")


def test_rl_numerics_check_finds_no_difference(table: Table) -> None:
    sizes = ("group_size=4", "groups_per_batch=2", "max_tokens=32", "max_trajectory_tokens=1500", "lora_rank=16")
    pages = ("task.num_pages_min=2", "task.num_pages_max=2", "task.page_chars=200")
    model = ("model_name=Qwen/Qwen3.5-9B-Base", "renderer_name=qwen3_disable_thinking")
    metrics = table.run("rl_numerics_check.train", *model, *sizes, *pages, "max_steps=1")
    table.note(agree(metrics))
