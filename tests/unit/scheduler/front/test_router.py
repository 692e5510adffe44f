"""Which sampler takes a sample, and why."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from services.scheduler.core import prefixes
from services.scheduler.core.prefixes import BLOCK_BYTES, PrefixIndex, read, starts_of, written
from services.scheduler.sampling.router import SLACK, Ask, choose


@dataclass
class Sampler:
    sampler_id: str
    in_flight: int = 0
    capacity: int = 8
    reserve: int = 2
    usable: bool = True
    resident: set[str] = field(default_factory=set)

    @property
    def incarnation(self) -> str:
        return f"life-of-{self.sampler_id}"


def chosen(ask: Ask, *samplers: Sampler) -> tuple[str, str] | None:
    choice = choose(ask, samplers)
    return None if choice is None else (choice.sampler.sampler_id, choice.reason)


def test_adapter_residency_beats_load() -> None:
    here, idle = Sampler("a", in_flight=5, resident={"m@1"}), Sampler("b")
    assert chosen(Ask("m@1", 1), here, idle) == ("a", "resident")
    assert chosen(Ask("", 1), here, idle) == ("b", "load")
    assert chosen(Ask("m@2", 1), here, idle) == ("b", "load")


def test_among_those_that_all_hold_the_adapter_load_decides() -> None:
    both = Sampler("a", in_flight=2, resident={"m@1"}), Sampler("b", resident={"m@1"})
    assert chosen(Ask("m@1", 1), *both) == ("b", "load")


def test_full_or_suspect_samplers_are_passed_over() -> None:
    full, suspect, other = Sampler("a", in_flight=8, resident={"m@1"}), Sampler("b", usable=False), Sampler("c", 7)
    assert chosen(Ask("m@1", 1), full, suspect, other) == ("c", "load")
    assert chosen(Ask("m@1", 2), full, suspect, other) is None


def test_sample_larger_than_the_capacity_fits_an_idle_sampler() -> None:
    assert chosen(Ask("", 64), Sampler("a", in_flight=1)) is None
    assert chosen(Ask("", 64), Sampler("a")) == ("a", "load")


def test_what_is_reserved_goes_beyond_the_capacity_by_the_reserve_and_no_further() -> None:
    assert chosen(Ask("", 1), Sampler("a", in_flight=8)) is None
    assert chosen(Ask("", 1, reserved=True), Sampler("a", in_flight=8)) == ("a", "load")
    assert chosen(Ask("", 1, reserved=True), Sampler("a", in_flight=9)) == ("a", "load")
    assert chosen(Ask("", 1, reserved=True), Sampler("a", in_flight=10)) is None
    assert chosen(Ask("", 1, reserved=True), Sampler("a", in_flight=8, reserve=0)) is None


def test_a_reserved_request_of_many_sequences_begins_when_the_reserve_is_free() -> None:
    many = Ask("", 6, reserved=True)
    assert chosen(many, Sampler("a", in_flight=8)) == ("a", "load")
    assert chosen(many, Sampler("a", in_flight=9)) is None
    assert chosen(Ask("", 6), Sampler("a", in_flight=3)) is None


def test_load_is_relative_to_capacity() -> None:
    small, large = Sampler("a", in_flight=2, capacity=4), Sampler("b", in_flight=4, capacity=64)
    assert chosen(Ask("", 1), small, large) == ("b", "load")


def test_a_cached_prompt_draws_until_its_sampler_is_too_busy() -> None:
    ask = Ask("", 1, cached={"life-of-a": 0.9})
    threshold = int(SLACK * 8)
    assert chosen(ask, Sampler("a", in_flight=threshold), Sampler("b")) == ("a", "prefix")
    assert chosen(ask, Sampler("a", in_flight=threshold + 1), Sampler("b")) == ("b", "load")


def test_an_affinity_prefers_one_sampler_whoever_asks_and_yields_to_load() -> None:
    ask = Ask("", 1, affinity="conversation 7")
    samplers = [Sampler(name) for name in "abcd"]
    found = chosen(ask, *samplers)
    assert found is not None
    assert found[1] == "sticky"
    assert chosen(ask, *reversed(samplers)) == found
    busy = [Sampler(name, in_flight=4 if name == found[0] else 0) for name in "abcd"]
    spilled = chosen(ask, *busy)
    assert spilled is not None
    assert spilled[0] != found[0]


def test_affinities_spread_and_only_those_of_a_lost_sampler_move() -> None:
    samplers = [Sampler(name) for name in "abcd"]
    before = {n: chosen(Ask("", 1, affinity=str(n)), *samplers) for n in range(400)}
    counts = {name: sum(one == (name, "sticky") for one in before.values()) for name in "abcd"}
    assert min(counts.values()) > 60
    after = {n: chosen(Ask("", 1, affinity=str(n)), *samplers[1:]) for n in range(400)}
    assert all(after[n] == one for n, one in before.items() if one != ("a", "sticky"))


def test_a_conversation_that_went_elsewhere_stays_there_a_common_start_does_not_draw_it() -> None:
    key = next(
        str(n) for n in range(99) if chosen(Ask("", 1, affinity=str(n)), Sampler("a"), Sampler("b")) == ("a", "sticky")
    )
    assert chosen(Ask("", 1, {"life-of-b": 0.6}, key), Sampler("a"), Sampler("b")) == ("b", "prefix")
    assert chosen(Ask("", 1, {"life-of-b": 0.2}, key), Sampler("a"), Sampler("b")) == ("a", "sticky")
    assert chosen(Ask("", 1, {"life-of-b": 0.2}), Sampler("a"), Sampler("b")) == ("b", "prefix")


def prompt(*parts: tuple[int, int]) -> bytes:
    """(token, how often), …"""
    return np.concatenate([np.full(count, token, "<i4") for token, count in parts]).tobytes()


def test_the_next_turn_finds_what_the_last_one_left() -> None:
    index = PrefixIndex()
    first, other = prompt((1, 100), (2, 60)), prompt((1, 100), (3, 60))
    index.sent("m@1", starts_of("t", first), "one")
    turn = starts_of("t", first + prompt((4, 40)))
    share = index.cached("m@1", turn)["one"]
    assert 0.6 < share <= 0.8  # four of its five blocks are such a depth
    assert 0 < index.cached("m@1", starts_of("t", other))["one"] < 0.65


def test_nothing_is_shared_between_tenants_and_adapters() -> None:
    index = PrefixIndex()
    index.sent("m@1", starts_of("t", prompt((1, 100))), "one")
    assert index.cached("m@2", starts_of("t", prompt((1, 100)))) == {}
    assert index.cached("m@1", starts_of("u", prompt((1, 100)))) == {}
    assert index.cached("m@1", starts_of("t", prompt((2, 100)))) == {}


def test_the_block_with_the_last_token_counts_for_nothing() -> None:
    assert starts_of("t", prompt((1, 32))).keys == ()
    assert len(starts_of("t", prompt((1, 33))).keys) == 1
    assert starts_of("t", b"").keys == ()


@pytest.mark.parametrize("length", [1, 32, 33, 65, 1000, 40_000])
def test_starts_survive_their_row(length: int) -> None:
    starts = starts_of("t", prompt((1, length)))
    again = read(written(starts))
    assert again.keys == starts.keys
    assert again.shares == pytest.approx(starts.shares, abs=1e-3)
    assert len(written(starts)) < 300


def test_the_index_is_bounded_and_forgets_what_was_not_used() -> None:
    index = PrefixIndex(most=3)
    old, kept = starts_of("t", prompt((1, 33))), starts_of("t", prompt((2, 33)))
    index.sent("", old, "one")
    for token in range(3, 6):
        index.sent("", kept, "one")
        index.sent("", starts_of("t", prompt((token, 33))), "two")
    assert len(index) == 3
    assert index.cached("", old) == {}
    assert index.cached("", kept) == {"one": pytest.approx(32 / 33)}


def test_depths_double_every_second_time() -> None:
    assert prefixes.DEPTHS[:8] == [1, 2, 3, 4, 6, 8, 12, 16]
    assert BLOCK_BYTES == 128


class Caching(Sampler):
    """A sampler with an endless cache of whole blocks."""

    def __init__(self, name: str) -> None:
        super().__init__(name, capacity=16)
        self.blocks: set[bytes] = set()
        self.most_in_flight = 0

    def computes(self, prompt: bytes) -> float:
        """The share of the prompt it had not cached."""
        starts = [prompt[:end] for end in range(BLOCK_BYTES, len(prompt) - 3, BLOCK_BYTES)]
        hits = next((n for n, start in enumerate(starts) if start not in self.blocks), len(starts))
        self.blocks.update(starts)
        return 1.0 - hits * BLOCK_BYTES / len(prompt)


def computed(*, routed: bool) -> tuple[float, int]:
    """(share of all prompts that was computed, most in flight at one sampler) over conversations that interleave."""
    dice, index, samplers = np.random.default_rng(3), PrefixIndex(), [Caching("a"), Caching("b")]
    talks = {n: prompt((n + 1, 200)) for n in range(24)}
    under_way: list[Caching] = []
    shares = []
    for turn in range(24 * 8):
        number = int(dice.integers(24))
        asked = talks[number] = talks[number] + prompt((100 + turn, 60))
        starts = starts_of("t", asked)
        choice = choose(Ask("", 1, index.cached("", starts)), samplers)
        assert choice is not None
        taken = choice.sampler if routed else samplers[turn % 2]
        index.sent("", starts, taken.incarnation)
        shares.append(taken.computes(asked))
        taken.in_flight += 1
        taken.most_in_flight = max(taken.most_in_flight, taken.in_flight)
        under_way.append(taken)
        while len(under_way) > 8:
            under_way.pop(int(dice.integers(len(under_way)))).in_flight -= 1
    return float(np.mean(shares)), max(sampler.most_in_flight for sampler in samplers)


def test_conversations_are_computed_once_and_the_load_stays_even() -> None:
    routed, most = computed(routed=True)
    in_turn, _ = computed(routed=False)
    assert routed < 0.75 * in_turn
    assert most <= 8 / 2 + 16 * SLACK
