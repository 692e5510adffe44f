"""Identifiers come from the client's own key and have one grammar."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common import ids
from services.common.errors import MissingResource, UnknownId

SESSION = "39aa5eb2-e234-4a95-ab68-896e4cac8c45"


def test_ids_round_trip() -> None:
    assert ids.parse_model_id(f"{SESSION}:train:12") == ids.ModelId(SESSION, 12)
    assert str(ids.ModelId(SESSION, 12)) == f"{SESSION}:train:12"
    sampling = ids.SamplingSessionId(SESSION, 3, "tiny-qwen3")
    assert ids.parse_sampling_session_id(str(sampling)) == sampling
    request = ids.RequestId("tiny-qwen3", ids.key_hash("train", "x", 1), 0)
    assert ids.parse_request_id(str(request)) == request
    job = ids.JobId("0f" * 16, "tiny-qwen3")
    assert ids.parse_job_id(str(job)) == job


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        f"{SESSION}:train:",
        f"{SESSION}:train:01",
        f"{SESSION}:train:-1",
        f"{SESSION}:train:1\n",
        f"../{SESSION}:train:1",
    ],
)
def test_malformed_model_ids_are_unknown_VAL_16(text: str) -> None:
    with pytest.raises(UnknownId):
        ids.parse_model_id(text)


@given(st.lists(st.text(max_size=4), max_size=4), st.lists(st.text(max_size=4), max_size=4))
def test_different_keys_never_share_a_hash_input(left: list[str], right: list[str]) -> None:
    assert (ids.key_hash(*left) == ids.key_hash(*right)) == (left == right)


def test_int64_sequence_ids_stay_apart_IDEM_08() -> None:
    assert ids.key_hash("s", 700000000000000001) != ids.key_hash("s", 700000000000000002)


@pytest.mark.parametrize("generation", ["00", "01", "-1", "", "1234567"])
def test_a_request_id_has_one_spelling_VAL_16(generation: str) -> None:
    with pytest.raises(UnknownId):
        ids.parse_request_id(f"tiny-qwen3.{ids.key_hash('x')}.{generation}")


@pytest.mark.parametrize(
    "text", ["", "job-", f"job-{'0' * 32}", f"job-{'0F' * 16}.p", f"job-{'0' * 32}.p\n", f"../job-{'0' * 32}.p"]
)
def test_what_is_no_job_id_names_no_job(text: str) -> None:
    with pytest.raises(MissingResource):
        ids.parse_job_id(text)
