"""What a decode leg loads, and what is left to its engine: in what vLLM's own scheduler makes of it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.request import Request

from services.sampler.kv_connector.keys import PlainPrompt
from services.sampler.kv_connector.leg import Leg, Part
from services.sampler.kv_connector.scheduler_side import SchedulerSide
from services.sampler.kv_connector.scope import HASH_ALGORITHM
from services.sampler.kv_metrics import SAMPLER
from tests.unit.sampler.kv_connector.real_scheduler import BLOCK, Bench, make_bench, sampled
from tools.make_tiny_qwen3 import build

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("kv") / "tiny-qwen3")


def tokens_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(f"{length} {seed}").choices(range(2, 500), k=length)


def attach(bench: Bench, available: set[str] | None = None, *, strict: bool = True) -> None:
    side = SchedulerSide(BLOCK, bench.keys, lambda key: key in (available or set()), strict=strict)
    bench.scheduler.connector.attach_scheduler(side)


def add(bench: Bench, name: str, prompt: list[int], *, max_tokens: int = 8) -> Request:
    extra = {"kv_transfer_params": Leg(Part.DECODE, name).params()}
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, extra_args=extra)
    params.update_from_generation_config({}, 1)
    hasher = get_request_block_hasher(BLOCK, get_hash_fn_by_name(HASH_ALGORITHM))
    request = Request(name, prompt, params, None, block_hasher=hasher)
    bench.requests[name] = request
    bench.scheduler.add_request(request)
    return request


def step(bench: Bench) -> tuple[list[tuple[str, int]], dict[str, int]]:
    """(key, block) of each load, and the tokens each request computes."""
    output: Any = bench.scheduler.schedule()
    loads = [(move.key, move.block_id) for move in output.kv_connector_metadata.moves.loads]
    bench.scheduler.update_from_output(output, sampled(output, bench.requests))
    return loads, dict(output.num_scheduled_tokens)


def recomputed() -> float:
    value = SAMPLER.registry.get_sample_value("tinkermesh_sampler_kv_recomputed_tokens_total")
    assert value is not None
    return value


def keys_of(bench: Bench, request: Request, known: list[int]) -> list[str]:
    return bench.keys.of_request(request, request.block_hashes, known)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33, 50])
def test_the_first_forward_is_a_one_token_decode_TAIL_07_PDR_17(model: Path, length: int) -> None:
    """Everything but the last token is loaded, into the blocks the request has, whatever the boundary."""
    bench, before = make_bench(model), recomputed()
    attach(bench)
    prompt = tokens_of(length + 1)
    request = add(bench, "d", prompt)
    loads, scheduled = step(bench)
    (blocks,) = bench.scheduler.kv_cache_manager.get_block_ids("d")
    assert scheduled == {"d": 1}
    expected = keys_of(bench, request, prompt[:-1])
    assert loads == list(zip(expected, blocks[: len(expected)], strict=True))
    assert [step(bench) for _ in range(3)] == [([], {"d": 1})] * 3
    assert recomputed() == before


def test_blocks_the_engine_still_has_are_not_loaded_again_TAIL_03(model: Path) -> None:
    bench = make_bench(model)
    attach(bench)
    stem = tokens_of(50)
    add(bench, "warm", [*stem, 7])
    step(bench)
    request = add(bench, "d", [*stem, 8])
    loads, _ = step(bench)
    assert [key for key, _ in loads] == keys_of(bench, request, stem)[3:]


def test_a_preempted_leg_loads_its_prompt_again_and_computes_only_its_output_PDR_17(model: Path) -> None:
    bench, before = make_bench(model), recomputed()
    attach(bench)
    request = add(bench, "d", tokens_of(51), max_tokens=20)
    first, _ = step(bench)
    for _ in range(5):
        step(bench)
    bench.preempt_all()
    again, scheduled = step(bench)
    assert [key for key, _ in again] == [key for key, _ in first]
    assert scheduled == {"d": request.num_tokens - 1 - 50}
    assert recomputed() == before


def test_without_strict_the_engine_computes_what_is_not_there_and_it_is_counted_PDR_17(model: Path) -> None:
    bench, before = make_bench(model), recomputed()
    prompt = tokens_of(51)
    request = Request("x", prompt, SamplingParams(), None, block_hasher=bench_hasher())
    keys = keys_of(bench, request, prompt[:-1])
    attach(bench, {keys[0], keys[1], keys[3]}, strict=False)
    add(bench, "d", prompt)
    loads, scheduled = step(bench)
    assert [key for key, _ in loads] == keys[:2]
    assert scheduled == {"d": 51 - 32}
    assert recomputed() == before + 50 - 32


def bench_hasher() -> Any:
    return get_request_block_hasher(BLOCK, get_hash_fn_by_name(HASH_ALGORITHM))


def test_the_engine_tells_which_first_blocks_it_has(model: Path) -> None:
    bench = make_bench(model)
    attach(bench)
    stem = tokens_of(50)
    connector: Any = bench.scheduler.connector
    keys = bench.keys.of_prompt(PlainPrompt(None, None), stem)
    assert connector.held(keys) == 0
    add(bench, "warm", [*stem, 7])
    step(bench)
    assert connector.held(keys) == 3
    assert connector.held(keys[1:]) == 2
    assert connector.held(bench.keys.of_prompt(PlainPrompt(None, "salt"), stem)) == 0
    bench.preempt_all()
    assert connector.held(keys) == 0
