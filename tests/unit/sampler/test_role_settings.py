"""A sampler with a role needs to know its tier; one without needs nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from tinkermesh.v1.types_pb2 import PoolFacts

from services.common.errors import InvalidInput, Unavailable
from services.sampler.kv_facts import kv_facts
from services.sampler.settings import Settings

GIVEN = {"role": "prefill", "kv_directory": "/tier", "kv_hash_seed": "7"}


def settings(**values: object) -> Settings:
    return Settings(model_path="/m", store_root="/s", **values)  # type: ignore[arg-type]


def test_without_a_role_nothing_of_a_tier_is_asked_TAIL_13() -> None:
    assert settings().check().role == "both"
    assert kv_facts(settings(), PoolFacts(), "e 1") is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("role", "decoder"),
        ("kv_directory", ""),
        ("kv_hash_seed", ""),
        ("kv_hash_seed", "random"),
        ("kv_hash_seed", "-1"),
        ("kv_hash_seed", str(1 << 32)),
        ("kv_limit_gib", 0.0),
        ("kv_max_age_seconds", 0.0),
        ("kv_wait_seconds", -1.0),
    ],
)
def test_a_role_with_a_tier_that_cannot_be_is_refused_at_start_TAIL_04(field: str, value: object) -> None:
    settings(**GIVEN).check()
    with pytest.raises(InvalidInput, match=field):
        settings(**{**GIVEN, field: value}).check()


def test_facts_name_what_two_samplers_must_have_in_common(tmp_path: Path) -> None:
    facts = PoolFacts(model_fingerprint="f")
    prefill = kv_facts(settings(**{**GIVEN, "kv_directory": str(tmp_path / "a")}), facts, "e 1")
    decode = kv_facts(settings(**{**GIVEN, "role": "decode", "kv_directory": str(tmp_path / "a")}), facts, "e 1")
    elsewhere = kv_facts(settings(**{**GIVEN, "kv_directory": str(tmp_path / "b")}), facts, "e 1")
    assert prefill is not None and prefill.tier
    assert prefill == decode
    assert elsewhere is not None and elsewhere.tier != prefill.tier


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    broken = settings(**{**GIVEN, "kv_directory": str(tmp_path / "file" / "tier")})
    with pytest.raises(Unavailable, match="stage kv tier"):
        kv_facts(broken, PoolFacts(), "e 1")
