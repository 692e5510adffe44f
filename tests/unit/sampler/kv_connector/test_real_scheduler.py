"""Nothing is saved that was not written: against what vLLM's own scheduler makes of preemptions and hits."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.sampler.kv_connector.saving import Due, SaveProgress, StepView
from services.sampler.kv_connector.scheduler_side import SchedulerSide
from tests.unit.sampler.kv_connector.real_scheduler import BLOCK, Bench, make_bench
from tools.make_tiny_qwen3 import build

pytestmark = pytest.mark.engine


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("kv") / "tiny-qwen3")


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(f"{length} {seed}").choices(range(2, 500), k=length)


def saved_by_step(bench: Bench, name: str = "a") -> dict[int, list[int]]:
    """Step -> indices of the blocks it saved (the tail is the last)."""
    order = {key: index for index, key in enumerate(bench.expected)}
    found: dict[int, list[int]] = {}
    for saved in bench.of(name):
        found.setdefault(saved.step, []).append(order[saved.key])
    return found


def run_timeline(bench: Bench, *budgets: int, preempt_after: int) -> None:
    for number, budget in enumerate(budgets, 1):
        bench.budget(budget)
        bench.step()
        if number == preempt_after:
            bench.preempt_all()


def test_preempted_within_its_prompt_the_tail_comes_last_and_once_TAIL_02(model: Path) -> None:
    """Prompt 50: 32, preempted, 32, 18."""
    bench = make_bench(model)
    bench.add("a", prompt(50))
    run_timeline(bench, 32, 32, 64, preempt_after=1)
    assert bench.chunks["a"] == [(0, 32), (0, 32), (32, 18)]
    assert saved_by_step(bench) == {1: [0, 1], 3: [2, 3]}
    assert bench.torn == []


def test_a_block_that_a_shorter_chunk_tears_is_saved_when_it_is_whole_TAIL_10(model: Path) -> None:
    """Prompt 50: 32, preempted, 40, 10."""
    bench = make_bench(model)
    bench.add("a", prompt(50))
    run_timeline(bench, 32, 40, 64, preempt_after=1)
    assert bench.chunks["a"] == [(0, 32), (0, 40), (40, 10)]
    assert saved_by_step(bench) == {1: [0, 1], 3: [2, 3]}
    assert bench.torn == []


def test_blocks_that_came_from_elsewhere_are_not_counted_twice_TAIL_11(model: Path) -> None:
    """Prompt 100, its first two blocks hit externally: 24 more, preempted, 8, the rest."""
    bench = make_bench(model)
    bench.add("a", prompt(100), external=32)
    run_timeline(bench, 24, 8, 64, preempt_after=1)
    assert bench.chunks["a"] == [(32, 24), (32, 8), (40, 60)]
    assert saved_by_step(bench) == {1: [0, 1, 2], 3: [3, 4, 5, 6]}
    assert bench.torn == []


def test_a_prompt_the_engine_still_has_is_saved_with_its_first_step_TAIL_03(model: Path) -> None:
    bench = make_bench(model)
    tokens = prompt(50)
    bench.add("warm", tokens)
    bench.until_idle()
    before = bench.steps
    bench.add("a", tokens)
    bench.until_idle()
    assert bench.chunks["a"] == [(48, 2)]
    assert saved_by_step(bench) == {before + 1: [0, 1, 2, 3]}
    assert bench.torn == []


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33, 48, 49])
def test_every_length_around_a_boundary_is_saved_whole_and_once_TAIL_01_TAIL_05_TAIL_08(
    model: Path, length: int
) -> None:
    """One token beyond a boundary is a tail of one, and saved too: it is a leg's."""
    bench = make_bench(model)
    bench.add("a", prompt(length), max_tokens=4)
    bench.until_idle()
    assert [saved.key for saved in bench.saved] == list(bench.expected)
    assert bench.torn == []


def crowd(bench: Bench, seed: int) -> None:
    """Requests that share prefixes, come and go, and fight for a cache too small for them."""
    dice = random.Random(seed)
    stems = [prompt(dice.randrange(30, 70), seed=n) for n in range(3)]
    waiting = list(range(24))
    while waiting or bench.scheduler.has_unfinished_requests():
        if waiting and dice.random() < 0.3:
            add_one(bench, dice, dice.choice(stems), waiting.pop())
        bench.budget(dice.choice([3, 8, 17, 40]))
        bench.step()
        if dice.random() < 0.05:
            bench.preempt_all()


def add_one(bench: Bench, dice: random.Random, stem: list[int], number: int) -> None:
    tokens = stem[: dice.randrange(1, len(stem) + 1)] + prompt(dice.randrange(0, 30), seed=number)
    external = min(dice.choice([0, 0, BLOCK, 2 * BLOCK]), (len(tokens) - 1) // BLOCK * BLOCK)
    salt = dice.choice([None, "t1", "t2"])
    bench.add(f"r{number}", tokens, max_tokens=dice.randrange(10, 60), external=external, salt=salt)


@pytest.mark.parametrize("seed", range(6))
def test_a_crowd_in_a_small_cache_saves_every_block_whole_and_once_TAIL_10_TAIL_11_TAIL_12(
    model: Path, seed: int
) -> None:
    bench = make_bench(model, blocks=14)
    crowd(bench, seed)
    assert bench.preemptions > 3, "the cache is not small enough to tell"
    assert bench.torn == []
    for name, request in bench.requests.items():
        keys = bench.keys.of_request(request, request.block_hashes, request.prompt_token_ids)
        assert [saved.key for saved in bench.of(name)] == keys


class Accumulates(SchedulerSide):
    """Counts for itself what it saw scheduled, as if nothing were ever preempted."""

    def on_new_request(self, request: Any) -> None:
        super().on_new_request(request)
        self.__dict__.setdefault("seen", {})[request.request_id] = 0

    def _saves(self, saving: Any, computed: int, scheduled: int, block_ids: Any) -> Iterator[Any]:
        seen = self.__dict__["seen"]
        name = saving.request.request_id
        seen[name] = max(seen[name], computed) if not seen[name] else seen[name]
        yield from super()._saves(saving, seen[name], scheduled, block_ids)
        seen[name] += scheduled


class AddsTheOffset(SchedulerSide):
    """Adds what was hit externally to what is written, which has it already."""

    def _saves(self, saving: Any, computed: int, scheduled: int, block_ids: Any) -> Iterator[Any]:
        offset = self.external.get(saving.request.request_id, 0)  # type: ignore[attr-defined]
        yield from super()._saves(saving, computed + offset, scheduled, block_ids)


class _Unbounded(SaveProgress):
    def advance(self, step: StepView) -> Due:
        return super().advance(StepView(step.computed, 10_000, step.allocated, step.hashed))


class IgnoresWhatIsWritten(SchedulerSide):
    """Saves what is allocated and hashed."""

    def on_new_request(self, request: Any) -> None:
        super().on_new_request(request)
        saving = self._saving[request.request_id]
        saving.progress = _Unbounded(saving.progress.prompt, saving.progress.block_size)


@pytest.mark.parametrize(
    ("side", "external", "budgets"),
    [(Accumulates, 0, (32, 40, 64)), (AddsTheOffset, 32, (24, 8, 64)), (IgnoresWhatIsWritten, 0, (32, 40, 64))],
)
def test_a_rule_that_counts_otherwise_saves_torn_blocks_TAIL_02_TAIL_10_TAIL_11(
    model: Path, side: type[SchedulerSide], external: int, budgets: tuple[int, ...]
) -> None:
    """The same timelines catch the rules that were wrong elsewhere."""
    bench = make_bench(model, side=side)
    bench.add("a", prompt(100 if external else 50), external=external)
    run_timeline(bench, *budgets, preempt_after=1)
    assert bench.torn != []


@pytest.mark.parametrize("side", [Accumulates, AddsTheOffset, IgnoresWhatIsWritten])
def test_the_crowd_catches_them_too_TAIL_10_TAIL_11(model: Path, side: type[SchedulerSide]) -> None:
    bench = make_bench(model, blocks=14, side=side)
    crowd(bench, 1)
    assert bench.torn != []
