"""Keys: equal in every process that has the same seed, and of nothing but the engine's own functions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from services.common.errors import InvalidInput
from services.sampler.kv_connector.keys import SEED_VARIABLE, BlockKeys, PlainPrompt
from services.sampler.kv_connector.scope import HASH_ALGORITHM
from tests.contract.sampler.client import ROOT
from tests.unit.sampler.kv_connector.derive_keys import BLOCK, LENGTHS

pytestmark = pytest.mark.engine


def derive(seed: str | None, algorithm: str = HASH_ALGORITHM) -> Any:
    environment = {name: value for name, value in os.environ.items() if name != SEED_VARIABLE}
    if seed is not None:
        environment[SEED_VARIABLE] = seed
    environment |= {"PYTHONPATH": f"{ROOT}:{ROOT / 'protos'}", "VLLM_CONFIGURE_LOGGING": "0"}
    command = [sys.executable, "-m", "tests.unit.sampler.kv_connector.derive_keys", algorithm]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=240, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_two_processes_derive_equal_keys_and_another_seed_others_TAIL_04() -> None:
    first, second, other = derive("7"), derive("7"), derive("8")
    assert first == second
    flat = {key for keys in first.values() for found in keys.values() for key in found}
    assert flat.isdisjoint(key for keys in other.values() for found in keys.values() for key in found)


def test_a_process_without_the_seed_or_with_another_algorithm_refuses_TAIL_04() -> None:
    assert "kv_hash_seed" in derive(None)["refused"]
    assert HASH_ALGORITHM in derive("7", "sha256")["refused"]


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> BlockKeys:
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core import kv_cache_utils

    monkeypatch.setenv(SEED_VARIABLE, "7")
    kv_cache_utils.init_none_hash(get_hash_fn_by_name(HASH_ALGORITHM))
    return BlockKeys(BLOCK, HASH_ALGORITHM)


def request(tokens: list[int], **of_request: Any) -> Any:
    from vllm import SamplingParams
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher
    from vllm.v1.request import Request

    hasher = get_request_block_hasher(BLOCK, get_hash_fn_by_name(HASH_ALGORITHM))
    params = SamplingParams(max_tokens=1)
    params.update_from_generation_config({}, 1)
    return Request("r", tokens, params, None, block_hasher=hasher, **of_request)


def test_the_decode_leg_derives_the_prefill_legs_keys_from_its_longer_prompt_TAIL_04_TAIL_05(keys: BlockKeys) -> None:
    """Its own last token may fill a block: that block is another one."""
    from vllm.lora.request import LoRARequest

    lora = LoRARequest("p@1@d", 5, "runs/p")
    for length in LENGTHS:
        tokens = list(range(3, 3 + length))
        for of_request in ({}, {"cache_salt": "t"}, {"cache_salt": "t", "lora_request": lora}):
            prefill, decode = request(tokens, **of_request), request([*tokens, 499], **of_request)
            mine = keys.of_request(prefill, prefill.block_hashes, tokens)
            assert keys.of_request(decode, decode.block_hashes, tokens) == mine
            plain = PlainPrompt(of_request.get("lora_request"), of_request.get("cache_salt"))
            assert keys.of_prompt(plain, tokens) == mine
            assert len(mine) == -(-length // BLOCK)


def test_adapter_path_salt_and_every_token_are_in_the_key_TAIL_04_TAIL_06(keys: BlockKeys) -> None:
    from vllm.lora.request import LoRARequest

    tokens = list(range(3, 53))
    prompts = [
        (PlainPrompt(None, None), tokens),
        (PlainPrompt(None, "a"), tokens),
        (PlainPrompt(None, "b"), tokens),
        (PlainPrompt(LoRARequest("p@1", 5, "runs/p"), "a"), tokens),
        (PlainPrompt(LoRARequest("p@2", 5, "runs/p"), "a"), tokens),
        (PlainPrompt(LoRARequest("p@1", 5, "runs/q"), "a"), tokens),
        (PlainPrompt(None, None), [4, *tokens[1:]]),
        (PlainPrompt(None, None), [*tokens[:-1], 4]),
    ]
    found = [keys.of_prompt(prompt, ids) for prompt, ids in prompts]
    assert len({made[-1] for made in found}) == len(prompts)
    assert len({made[0] for made in found}) == len(prompts) - 1  # only the last token of the last one differs
    same = PlainPrompt(LoRARequest("p@1", 9, "runs/p"), "a")
    assert keys.of_prompt(same, tokens) == found[3], "the engine's number of an adapter is its own"


def test_a_tail_is_never_taken_for_a_full_block_TAIL_04(keys: BlockKeys) -> None:
    tokens = list(range(3, 3 + BLOCK))
    assert keys.of_prompt(PlainPrompt(None, None), tokens[:-1])[0] != keys.of_prompt(PlainPrompt(None, None), tokens)[0]


def test_a_multimodal_request_neither_saves_nor_loads_TAIL_06(keys: BlockKeys) -> None:
    from services.sampler.kv_connector.leg import Leg, Part
    from services.sampler.kv_connector.scheduler_side import SchedulerSide

    for part in Part:
        side = SchedulerSide(BLOCK, keys, lambda key: True, strict=True)
        made = request(list(range(3, 40)))
        made.kv_transfer_params = Leg(part, "s").params()
        made.mm_features = [object()]
        side.on_new_request(made)
        assert side.matched(made, 0) == 0
        assert not side._saving
        assert not side._loading


def test_a_request_that_is_no_leg_neither_saves_nor_loads_TAIL_08_TAIL_13(keys: BlockKeys) -> None:
    from services.sampler.kv_connector.scheduler_side import SchedulerSide

    side = SchedulerSide(BLOCK, keys, lambda key: True, strict=True)
    for length in (BLOCK + 1, 3 * BLOCK + 5):
        made = request(list(range(3, 3 + length)))
        side.on_new_request(made)
        assert side.matched(made, 0) == 0
        assert not side._saving
        assert not side._loading


def test_hashes_of_another_seed_than_the_engines_are_refused_TAIL_04(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SEED_VARIABLE, raising=False)
    with pytest.raises(InvalidInput, match="kv_hash_seed"):
        BlockKeys(BLOCK, HASH_ALGORITHM)
