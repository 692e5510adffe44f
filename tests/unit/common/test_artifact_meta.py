"""Which save published what lies in the store."""

from __future__ import annotations

import pytest
from tinkermesh.v1.trainer_pb2 import ArtifactMeta

from services.common.artifact_meta import encode_meta, is_of_save

META = ArtifactMeta(tenant_id="t", model_id="m", kind="weights", name="ck", created_unix_ms=1_700_000_000_000, seq=7)


def other(**changed: object) -> ArtifactMeta:
    meta = ArtifactMeta()
    meta.CopyFrom(META)
    for name, value in changed.items():
        setattr(meta, name, value)
    return meta


def test_a_save_finds_what_an_earlier_run_of_it_published_IDEM_01() -> None:
    assert is_of_save(encode_meta(META) | {"files": {}, "term": 3}, META)


@pytest.mark.parametrize("changed", [{"seq": 9}, {"created_unix_ms": 1}, {"name": "cl"}, {"tenant_id": "u"}])
def test_what_another_save_published_is_not_its_own(changed: dict[str, object]) -> None:
    assert not is_of_save(encode_meta(other(**changed)), META)


def test_a_version_of_a_mesh_that_wrote_no_seq_is_known_by_the_rest() -> None:
    stored = encode_meta(META)
    del stored["seq"]
    assert is_of_save(stored, META)
    assert not is_of_save(stored, other(created_unix_ms=1))


def test_a_save_without_a_time_owns_nothing() -> None:
    assert not is_of_save(encode_meta(other(created_unix_ms=0)), other(created_unix_ms=0))
