"""The engine's arguments with a role and without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tools.make_tiny_qwen3 import build

pytestmark = pytest.mark.engine


def test_without_a_role_the_engine_has_no_connector_and_hashes_as_ever_TAIL_13(tmp_path: Path) -> None:
    from vllm.engine.arg_utils import EngineArgs

    from services.sampler.engine.config import EngineConfig, engine_args

    made = engine_args(EngineConfig(build(tmp_path / "m"), "float32", 64, 1 << 20, 32, 4, 64, 2, 8, 4))
    plain = EngineArgs(model=made.model)
    for field in ("kv_transfer_config", "prefix_caching_hash_algo", "disable_hybrid_kv_cache_manager"):
        assert getattr(made, field) == getattr(plain, field), field


def test_of_a_sample_that_is_no_leg_the_connector_is_told_nothing_TAIL_13() -> None:
    from vllm.sampling_params import RequestOutputKind

    from services.sampler.engine.kv_legs import KvLegs
    from services.sampler.engine.vllm_engine import sampling_params
    from services.sampler.kv_connector.leg import Part
    from services.sampler.ports import SequenceRequest

    legs = object.__new__(KvLegs)  # what it tells of a request depends on nothing else
    whole = SequenceRequest("s", None, [1], 1, 1.0, 1.0, -1, None, (), (), False, 0, None)
    prefill = replace(whole, leg=Part.PREFILL)
    told = [
        sampling_params(one, RequestOutputKind.FINAL_ONLY, legs.extra_args(one)).extra_args for one in (whole, prefill)
    ]
    assert told == [None, {"kv_transfer_params": {"part": "prefill", "sequence_id": "s"}}]
