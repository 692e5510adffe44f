"""When blocks and tails are due, in timelines of single steps."""

from __future__ import annotations

import pytest

from services.sampler.kv_connector.saving import Due, SaveProgress, StepView

BLOCK = 16
MANY = 100


def step(computed: int, scheduled: int, *, allocated: int = MANY, hashed: int = MANY) -> StepView:
    return StepView(computed, scheduled, allocated, hashed)


def timeline(prompt: int, *steps: StepView) -> list[tuple[list[int], bool]]:
    """Blocks, and the tail or not, that each step makes due."""
    progress = SaveProgress(prompt, BLOCK)
    found: list[Due] = [progress.advance(each) for each in steps]
    return [(list(range(due.first, due.last)), due.tail) for due in found]


def test_the_tail_is_due_only_with_the_step_that_completes_the_prompt_TAIL_01_TAIL_02() -> None:
    """Prompt 50: 32, preempted, 32, 18."""
    assert timeline(50, step(0, 32), step(0, 32), step(32, 18)) == [([0, 1], False), ([], False), ([2], True)]


def test_a_prompt_that_is_mostly_a_prefix_hit_is_saved_in_its_first_step_TAIL_03() -> None:
    assert timeline(50, step(48, 2)) == [([0, 1, 2], True)]


@pytest.mark.parametrize("prompt", [16, 32])
def test_a_prompt_of_whole_blocks_has_no_tail_TAIL_05(prompt: int) -> None:
    assert SaveProgress(prompt, BLOCK).tail_tokens == 0
    assert timeline(prompt, step(0, prompt), step(prompt, 1)) == [(list(range(prompt // BLOCK)), False), ([], False)]


def test_a_prompt_shorter_than_a_block_is_a_tail_alone_TAIL_05() -> None:
    assert timeline(5, step(0, 5)) == [([], True)]


def test_the_tail_is_saved_once_however_long_the_request_goes_on_TAIL_01() -> None:
    steps = [step(0, 50), *(step(50 + n, 1) for n in range(20)), step(0, 32), step(32, 30)]
    assert [tail for _, tail in timeline(50, *steps)] == [True] + [False] * 22


def test_a_tail_without_its_page_or_its_parents_hash_waits_for_the_next_step_TAIL_09() -> None:
    late_page = timeline(50, step(0, 50, allocated=3), step(50, 1), step(51, 1))
    assert late_page == [([0, 1, 2], False), ([], True), ([], False)]
    late_hash = timeline(50, step(0, 50, hashed=2), step(50, 1), step(51, 1))
    assert late_hash == [([0, 1], False), ([2], True), ([], False)]


def test_a_block_is_due_when_its_last_position_is_written_TAIL_10() -> None:
    """Prompt 50: 32, preempted, 40, 10: the third block is torn until the last step."""
    assert timeline(50, step(0, 32), step(0, 40), step(40, 10)) == [([0, 1], False), ([], False), ([2], True)]


def test_positions_that_came_from_elsewhere_count_once_TAIL_11() -> None:
    """Two blocks are loaded, 8 more positions computed: the third block is torn."""
    assert timeline(100, step(32, 8), step(40, 24), step(64, 36)) == [
        ([0, 1], False),
        ([2, 3], False),
        ([4, 5], True),
    ]


def test_blocks_that_are_not_allocated_or_not_hashed_are_not_due_TAIL_10() -> None:
    assert timeline(64, step(0, 64, allocated=2), step(64, 1)) == [([0, 1], False), ([2, 3], False)]
    assert timeline(64, step(0, 64, hashed=1), step(64, 1)) == [([0], False), ([1, 2, 3], False)]


def test_blocks_beyond_the_prompt_are_never_due_TAIL_01() -> None:
    assert timeline(20, step(0, 20), *(step(20 + n, 1) for n in range(40)))[1:] == [([], False)] * 40


def test_a_resumed_request_never_counts_what_is_not_written_TAIL_10() -> None:
    """Preempted with 48 of 64 saved; resumed in small chunks, what is left comes with its own step."""
    steps = [step(0, 48), step(0, 8), step(8, 8), step(16, 40), step(56, 8)]
    assert [blocks for blocks, _ in timeline(64, *steps)] == [[0, 1, 2], [], [], [], [3]]
