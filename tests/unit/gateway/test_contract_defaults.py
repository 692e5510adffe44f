"""Defaults are our own frozen contract; the SDK installed for tests must still agree with it."""

from __future__ import annotations

import inspect

import msgspec
import pytest

from services.gateway.wire import bodies

FROZEN = {
    "adam": {
        "learning_rate": 1e-4,
        "beta1": 0.9,
        "beta2": 0.95,
        "eps": 1e-12,
        "weight_decay": 0.0,
        "grad_clip_norm": 0.0,
    },
    "lora": {"rank": 32, "seed": None, "train_unembed": True, "train_mlp": True, "train_attn": True},
    "sampling": {"max_tokens": None, "seed": None, "stop": None, "temperature": 1.0, "top_k": -1, "top_p": 1.0},
}


def as_dict(struct: msgspec.Struct) -> dict[str, object]:
    return {name: value for name, value in msgspec.structs.asdict(struct).items() if name != "type"}


def test_defaults_are_frozen_API_09() -> None:
    assert as_dict(bodies.AdamParams()) == FROZEN["adam"]
    assert as_dict(bodies.LoraConfig()) == FROZEN["lora"]
    assert as_dict(bodies.SamplingParams()) == FROZEN["sampling"]


def test_the_installed_sdk_still_has_these_defaults_API_09() -> None:
    tinker = pytest.importorskip("tinker")
    adam, sampling = tinker.types.AdamParams(), tinker.types.SamplingParams()
    assert {name: getattr(adam, name) for name in FROZEN["adam"]} == FROZEN["adam"]
    assert {name: getattr(sampling, name) for name in FROZEN["sampling"]} == FROZEN["sampling"]
    rank = inspect.signature(tinker.ServiceClient.create_lora_training_client).parameters["rank"].default
    assert rank == FROZEN["lora"]["rank"]


def test_another_sdk_default_does_not_change_ours_API_09(monkeypatch: pytest.MonkeyPatch) -> None:
    tinker = pytest.importorskip("tinker")
    monkeypatch.setattr(tinker.types.AdamParams, "__init__", lambda self, **_: None)
    assert as_dict(bodies.AdamParams()) == FROZEN["adam"]


def test_the_gateway_does_not_import_the_sdk() -> None:
    import subprocess
    import sys

    code = "import sys, services.gateway.app; sys.exit(any(m.split('.')[0] in ('tinker','torch') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], env=_environment(), check=False).returncode == 0


def _environment() -> dict[str, str]:
    import os
    from pathlib import Path

    root = Path(__file__).resolve().parents[3]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "protos")])}
