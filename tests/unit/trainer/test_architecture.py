"""What a model directory must be, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from services.common.errors import InvalidInput
from services.trainer.megatron.architecture import read_architecture
from services.trainer.megatron.engine import EngineConfig, MegatronEngine
from services.trainer.megatron.mixture import Mixture


def _copy(source: Path, target: Path, **changes: object) -> Path:
    target.mkdir()
    config = json.loads((source / "config.json").read_text()) | changes
    (target / "config.json").write_text(json.dumps(config))
    (target / "model.safetensors").symlink_to(source / "model.safetensors")
    return target


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("architectures", ["MambaForCausalLM"]),
        ("attention_bias", True),
        ("mlp_bias", True),
        ("use_sliding_window", True),
        ("hidden_act", "gelu"),
        ("rope_parameters", {"rope_type": "yarn", "rope_theta": 1e4}),
    ],
)
def test_unsupported_field_is_named(
    field: str, value: object, model_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    directory = _copy(model_dir("qwen3"), tmp_path / "model", **{field: value})
    with pytest.raises(InvalidInput, match="rope_type" if field == "rope_parameters" else field):
        read_architecture(directory)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("shared_expert_intermediate_size", 64),
        ("scoring_func", "sigmoid"),
        ("n_group", 2),
        ("num_experts_per_tok", 9),
        ("num_experts_per_tok", 0),
        ("decoder_sparse_step", 0),
        ("moe_intermediate_size", "many"),
    ],
)
def test_unsupported_field_of_a_mixture_is_named(
    field: str, value: object, model_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    directory = _copy(model_dir("qwen3-moe"), tmp_path / "model", **{field: value})
    with pytest.raises(InvalidInput, match="many" if value == "many" else field):
        read_architecture(directory)


def test_a_mixture_is_read_under_the_fields_old_and_new_names(model_dir: Callable[[str], Path], tmp_path: Path) -> None:
    expected = Mixture(experts=8, chosen=3, ffn=32, normalised=True, layers=frozenset({0, 1, 3}))
    assert read_architecture(model_dir("qwen3-moe")).mixture == expected
    config = json.loads((model_dir("qwen3-moe") / "config.json").read_text())
    config["num_experts"] = config.pop("num_local_experts")
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_architecture(tmp_path).mixture == expected
    (tmp_path / "config.json").write_text(json.dumps(config | {"decoder_sparse_step": 5}))
    assert read_architecture(tmp_path).mixture is None
    assert read_architecture(model_dir("qwen3")).mixture is None


def test_tensor_parallelism_must_divide_the_experts_inner_size(
    model_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    directory = _copy(model_dir("qwen3-moe"), tmp_path / "model", moe_intermediate_size=33)
    with pytest.raises(InvalidInput, match="moe_intermediate_size 33"):
        read_architecture(directory).check_tensor_parallel(2)


@pytest.mark.parametrize("field", ["hidden_size", "num_attention_heads", "rms_norm_eps", "intermediate_size"])
def test_missing_or_unfit_field_is_named(field: str, model_dir: Callable[[str], Path], tmp_path: Path) -> None:
    directory = _copy(model_dir("qwen3"), tmp_path / "model", **{field: "many"})
    with pytest.raises(InvalidInput, match="many"):
        read_architecture(directory)
    config = json.loads((directory / "config.json").read_text())
    del config[field]
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidInput, match=f"config.json has no {field}"):
        read_architecture(directory)


@pytest.mark.parametrize("text", ["[]", "7", '"x"'])
def test_config_that_is_no_object_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InvalidInput, match=r"config\.json"):
        read_architecture(tmp_path)


def test_old_style_rope_theta_is_read(model_dir: Callable[[str], Path], tmp_path: Path) -> None:
    directory = _copy(model_dir("llama"), tmp_path / "model", rope_parameters=None, rope_theta=5e5)
    assert read_architecture(directory).rope_theta == 5e5


def test_missing_directory_is_refused_OPT_13(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="config.json"):
        read_architecture(tmp_path)


def test_missing_and_misshaped_tensors_are_named_OPT_13(model_dir: Callable[[str], Path], tmp_path: Path) -> None:
    source = model_dir("qwen3")
    name = "model.layers.1.self_attn.k_norm.weight"
    for label, damage in (("missing", lambda w: w.pop(name)), ("misshaped", lambda w: w.update({name: w[name][:4]}))):
        directory = tmp_path / label
        directory.mkdir()
        (directory / "config.json").write_bytes((source / "config.json").read_bytes())
        weights = load_file(source / "model.safetensors")
        damage(weights)
        save_file({key: value.clone() for key, value in weights.items()}, directory / "model.safetensors")
        with pytest.raises(InvalidInput, match=name):
            MegatronEngine(EngineConfig(directory))
