"""vLLM's own scheduler with a small cache, and a model of the memory it writes.

Every row of the modelled memory remembers the whole prefix it was computed for, and whose it is. A block that is
saved under a key must hold the rows of that key, all of them: this is looked up here, by prefix, and not derived
from anything the connector keeps.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm import SamplingParams
from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from services.sampler.kv_connector import connector
from services.sampler.kv_connector.keys import SEED_VARIABLE, BlockKeys, PlainPrompt
from services.sampler.kv_connector.leg import Leg, Part
from services.sampler.kv_connector.scheduler_side import SchedulerSide
from services.sampler.kv_connector.scope import HASH_ALGORITHM
from services.sampler.kv_connector.steps import BlockMove

BLOCK = 16
SEED = "7"
Prefix = tuple[int, ...]


class ExternalHits(SchedulerSide):
    """Claims that so many first tokens of a prefill leg lie elsewhere: the real one saves or loads, never both."""

    external: dict[str, int]

    def matched(self, request: Any, local: int) -> int:
        return max(0, self.external.get(request.request_id, 0) - local)

    def allocated(self, request: Any, block_ids: Sequence[int], external: int) -> None:
        self.taken[request.request_id] = external


@dataclass
class Saved:
    request_id: str
    key: str
    block_id: int
    step: int


@dataclass
class Bench:
    """`step()` until idle; `saved` and `torn` fill as it goes."""

    scheduler: Scheduler
    side: ExternalHits
    keys: BlockKeys
    saved: list[Saved] = field(default_factory=list)
    torn: list[Saved] = field(default_factory=list)
    expected: dict[str, list[Prefix]] = field(default_factory=dict)
    memory: dict[tuple[int, int], Prefix] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)
    steps: int = 0
    preemptions: int = 0
    chunks: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def add(
        self, name: str, tokens: list[int], *, max_tokens: int = 1, external: int = 0, salt: str | None = None
    ) -> Request:
        leg = Leg(Part.PREFILL, name)
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, extra_args={"kv_transfer_params": leg.params()})
        params.update_from_generation_config({}, 1)
        hasher = get_request_block_hasher(BLOCK, get_hash_fn_by_name(HASH_ALGORITHM))
        request = Request(name, tokens, params, None, cache_salt=salt, block_hasher=hasher)
        self.requests[name] = request
        self.side.external[name] = external
        for index, key in enumerate(self.keys.of_prompt(PlainPrompt(None, salt), tokens)):
            rows = range(index * BLOCK, min((index + 1) * BLOCK, len(tokens)))
            self.expected[key] = [(hash(salt), *tokens[: row + 1]) for row in rows]
        self.scheduler.add_request(request)
        return request

    def budget(self, tokens: int) -> None:
        self.scheduler.max_num_scheduled_tokens = tokens

    def preempt_all(self) -> None:
        """The engine's own way: every running request loses its blocks, and the prefix cache forgets."""
        self.preemptions += len(self.scheduler.running)
        assert self.scheduler.reset_prefix_cache(reset_running_requests=True)

    def step(self) -> None:
        self.steps += 1
        before = {name: request.num_preemptions for name, request in self.requests.items()}
        output = self.scheduler.schedule()
        self.preemptions += sum(self.requests[name].num_preemptions - n for name, n in before.items())
        for block in output.new_block_ids_to_zero or ():
            for row in range(BLOCK):
                self.memory.pop((block, row), None)
        for name, scheduled in output.num_scheduled_tokens.items():
            self._compute(name, scheduled)
        for move in output.kv_connector_metadata.moves.saves:
            self._check(move)
        self.scheduler.update_from_output(output, sampled(output, self.requests))

    def until_idle(self, most: int = 2000) -> None:
        for _ in range(most):
            if not self.scheduler.has_unfinished_requests():
                return
            self.step()
        raise AssertionError(f"not idle after {most} steps")

    def of(self, name: str) -> list[Saved]:
        return [saved for saved in self.saved if saved.request_id == name]

    def _compute(self, name: str, scheduled: int) -> None:
        """What the worker would write: what was loaded from elsewhere first, then the step's positions."""
        request = self.requests[name]
        tokens, salt = list(request.all_token_ids), hash(request.cache_salt)
        (blocks,) = self.scheduler.kv_cache_manager.get_block_ids(name)
        end = request.num_computed_tokens
        self.chunks.setdefault(name, []).append((end - scheduled, scheduled))
        loaded = self.side.taken.pop(name, 0)
        for position in range(end - scheduled - loaded, end):
            self.memory[blocks[position // BLOCK], position % BLOCK] = (salt, *tokens[: position + 1])

    def _check(self, move: BlockMove) -> None:
        saved = Saved(move.sequence_id, move.key, move.block_id, self.steps)
        self.saved.append(saved)
        rows = self.expected[move.key]
        if [self.memory.get((move.block_id, row)) for row in range(len(rows))] != rows:
            self.torn.append(saved)


def sampled(output: Any, requests: dict[str, Request]) -> ModelRunnerOutput:
    """One token for every request whose known tokens are all computed with this step."""
    names = list(output.num_scheduled_tokens)
    tokens = [[1] if requests[n].num_computed_tokens >= requests[n].num_tokens else [] for n in names]
    return ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, tokens)


def make_bench(model: Path, *, blocks: int = 100, budget: int = 64, side: type[SchedulerSide] = SchedulerSide) -> Bench:
    """A scheduler as the sampler configures it, with our connector, and a cache of `blocks` blocks."""
    os.environ[SEED_VARIABLE] = SEED
    init_none_hash(get_hash_fn_by_name(HASH_ALGORITHM))
    config = EngineArgs(
        model=str(model),
        dtype="float32",
        enforce_eager=True,
        block_size=BLOCK,
        max_model_len=1024,
        max_num_seqs=8,
        max_num_batched_tokens=max(budget, 1024),
        prefix_caching_hash_algo=HASH_ALGORITHM,
        disable_hybrid_kv_cache_manager=True,
        kv_transfer_config=KVTransferConfig(
            kv_connector=connector.NAME, kv_connector_module_path=connector.__name__, kv_role="kv_both"
        ),
    ).create_engine_config()
    config.cache_config.num_gpu_blocks = blocks
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=config.model_config.dtype)
    cache = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    scheduler = Scheduler(config, cache, StructuredOutputManager(config), BLOCK)
    scheduler.needs_kv_cache_zeroing = True
    keys = BlockKeys(BLOCK, HASH_ALGORITHM)
    half: Any = type("Half", (ExternalHits, side), {})(BLOCK, keys, lambda key: False, strict=True)
    half.external, half.taken = {}, {}
    scheduler.connector.attach_scheduler(half)
    bench = Bench(scheduler, half, keys)
    bench.budget(budget)
    return bench
