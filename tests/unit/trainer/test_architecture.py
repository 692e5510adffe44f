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
