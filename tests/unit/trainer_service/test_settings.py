from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.common.errors import InvalidInput
from services.common.settings import from_environment, to_environment
from services.trainer.facts import pool_facts
from services.trainer.settings import Settings


def settings(**changes: object) -> Settings:
    return Settings(**{"model_path": "m", "store_root": "s", **changes})  # type: ignore[arg-type]


def test_settings_travel_through_the_environment():
    before = settings(slots=3, alpha=16.0, schedulers="a:1, b:2", tp=2)
    after = from_environment(Settings, "trainer", to_environment(before, "trainer"))
    assert after == before
    assert after.scheduler_targets == ["a:1", "b:2"]


@pytest.mark.parametrize("field", ["pp", "ep", "cp"])
def test_untested_parallelism_is_refused_by_name(field: str):
    with pytest.raises(InvalidInput, match=f"{field}=2 is not supported"):
        settings(**{field: 2}).check()


@pytest.mark.parametrize("field", ["slots", "max_rank", "tp", "dp", "micro_batch_tokens"])
def test_counts_below_one_are_refused_by_name(field: str):
    with pytest.raises(InvalidInput, match=field):
        settings(**{field: 0}).check()


def _model(directory: Path, positions: int, architecture: str = "X") -> str:
    directory.mkdir(exist_ok=True)
    config = {"architectures": [architecture], "vocab_size": 10, "max_position_embeddings": positions}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "model.safetensors").write_bytes(b"x")
    return str(directory)


def test_facts_come_from_the_model_and_the_settings_ADD_01(tmp_path: Path):
    facts = pool_facts(settings(model_path=_model(tmp_path / "Tiny-Model", 40960), aliases="tiny, small"))
    assert (facts.pool, facts.base_model, list(facts.aliases)) == ("tiny-model", "Tiny-Model", ["tiny", "small"])
    assert (facts.vocab_size, facts.max_context, facts.dtype) == (10, 2048, "float32")
    assert (facts.slots, facts.max_rank, facts.alpha, facts.unit_token_budget) == (8, 32, 32.0, 4096)
    assert facts.train_attn
    assert facts.train_mlp
    assert facts.train_unembed
    assert facts.tokenizer_path == str(tmp_path / "Tiny-Model")
    assert "cross_entropy" in facts.losses


@pytest.mark.parametrize("experts", [False, True])
def test_a_mixtures_experts_are_trained_only_where_the_setting_says_so(tmp_path: Path, experts: bool):
    path = _model(tmp_path / "m", 100, "Qwen3MoeForCausalLM")
    facts = pool_facts(settings(model_path=path, train_experts=experts))
    assert facts.train_mlp == experts
    assert facts.train_attn
    assert facts.train_unembed


def test_context_is_the_models_at_most(tmp_path: Path):
    path = _model(tmp_path / "m", 100)
    assert pool_facts(settings(model_path=path)).max_context == 100
    with pytest.raises(InvalidInput, match="max_context 101"):
        pool_facts(settings(model_path=path, max_context=101))


def test_pool_name_that_is_none_is_refused(tmp_path: Path):
    with pytest.raises(InvalidInput, match="pool"):
        pool_facts(settings(model_path=_model(tmp_path / "m", 100), pool="Not A Pool"))
