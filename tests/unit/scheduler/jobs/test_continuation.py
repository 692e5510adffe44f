"""The rules of composition, pure."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.core.continuation import (
    SHOWN,
    BadReference,
    Choice,
    Reference,
    Sampling,
    chosen,
    composed,
    find_sample,
    find_task,
    room,
    segment_seed,
)

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=50)
NAMES = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=60, unique=True)


def packed(ids: list[int]) -> bytes:
    return struct.pack(f"<{len(ids)}i", *ids)


@given(IDS, IDS, IDS)
def test_composition_is_concatenation_and_a_continuation_of_one_is_all_three_JOB_03_JOB_09(
    prompt: list[int], first: list[int], second: list[int]
) -> None:
    once = composed(packed(prompt), packed(first))
    assert once == packed(prompt + first) and len(once) == 4 * (len(prompt) + len(first))
    assert composed(once, packed(second)) == composed(packed(prompt), packed(first + second))


@given(
    st.none() | st.sampled_from([0.0, 0.5, 1.0]),
    st.none() | st.sampled_from([0.1, 1.0]),
    st.none() | st.sampled_from(["", "a", "b"]),
    st.builds(Sampling, st.sampled_from([0.0, 0.7]), st.sampled_from([0.2, 1.0]), st.sampled_from(["", "a"])),
)
def test_each_field_is_the_explicit_one_or_the_sources_JOB_05(
    temperature: float | None, top_p: float | None, lora_path: str | None, source: Sampling
) -> None:
    made = chosen(Choice(temperature, top_p, lora_path), source)
    assert made.temperature == (source.temperature if temperature is None else temperature)
    assert made.top_p == (source.top_p if top_p is None else top_p)
    assert made.lora_path == (source.lora_path if lora_path is None else lora_path)


def test_without_a_source_the_defaults_count_and_falsy_values_win_JOB_05() -> None:
    assert chosen(Choice()) == Sampling(1.0, 1.0, "")
    assert chosen(Choice(0.0, None, ""), Sampling(0.9, 0.8, "a")) == Sampling(0.0, 0.8, "")


@given(NAMES, st.data())
def test_a_task_is_found_by_id_and_by_index_JOB_02(names: list[str], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(names) - 1))
    assert find_task(Reference(index=index), "job", names) == index
    assert find_task(Reference(task_id=names[index]), "job", names) == index


@given(NAMES, st.integers(0, 100))
def test_a_refusal_lists_the_candidates_and_stays_short_JOB_08(names: list[str], beyond: int) -> None:
    for reference in (Reference(index=len(names) + beyond), Reference(task_id="?" * 9)):
        with pytest.raises(BadReference) as refused:
            find_task(reference, "job", names)
        text = str(refused.value)
        assert all(repr(name) in text for name in names[:SHOWN]) and len(text) < 3_000
        assert ("more" in text) == (len(names) > SHOWN) or any("more" in name for name in names)


def test_several_tasks_or_samples_are_ambiguous_and_one_is_not_JOB_08() -> None:
    assert find_task(Reference(), "job", ["a"]) == 0 and find_sample(Reference(), "task", 1) == 0
    with pytest.raises(BadReference, match="several tasks"):
        find_task(Reference(), "job", ["a", "b"])
    with pytest.raises(BadReference, match="several samples"):
        find_sample(Reference(), "task", 2)
    assert find_sample(Reference(sample_index=1), "task", 2) == 1
    with pytest.raises(BadReference, match="0 to 1"):
        find_sample(Reference(sample_index=2), "task", 2)


@given(st.integers(1, 4096), st.integers(0, 5000), st.none() | st.integers(1, 5000))
def test_what_is_admitted_fits_the_context_JOB_16(context: int, prompt: int, max_tokens: int | None) -> None:
    try:
        tokens = room(context, prompt, max_tokens)
    except ValueError as error:
        assert prompt + (max_tokens or 1) > context and str(context) in str(error)
        return
    assert tokens >= 1 and prompt + tokens <= context and tokens == (max_tokens or context - prompt)


@given(st.integers(-(2**62), 2**62), st.integers(0, 63), st.integers(1, 10_000))
def test_a_segment_draws_other_numbers_than_the_beginning_JOB_15(seed: int, sample: int, already: int) -> None:
    assert segment_seed(seed, sample, 0) == seed + sample
    later = segment_seed(seed, sample, already)
    assert 0 <= later < 2**63 and later == segment_seed(seed, sample, already) != segment_seed(
        seed, sample, already + 1
    )
