"""Keys of cache blocks: the engine's own hashes, of full blocks and of a prompt's partial last one.

A key says everything the block's numbers depend on beside the model: all tokens up to the block's end, the
adapter, and the salt. Only the engine's own functions make them, so both legs derive equal ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from vllm.lora.request import LoRARequest
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils

from services.common.errors import InvalidInput
from services.sampler.kv_connector.scope import HASH_ALGORITHM

SEED_VARIABLE = "PYTHONHASHSEED"


class Hashed(Protocol):
    """What a key is made of; vLLM's request is one."""

    @property
    def lora_request(self) -> LoRARequest | None: ...

    @property
    def cache_salt(self) -> str | None: ...

    @property
    def mm_features(self) -> Sequence[Any]: ...

    @property
    def prompt_embeds(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class PlainPrompt:
    """A prompt that is not a request of the engine yet."""

    lora_request: LoRARequest | None
    cache_salt: str | None
    mm_features: tuple[()] = ()
    prompt_embeds: None = None


class BlockKeys:
    """Raises InvalidInput where keys of two processes would not be equal."""

    def __init__(self, block_size: int, algorithm: str) -> None:
        check_seed(os.environ.get(SEED_VARIABLE), algorithm)
        self._block_size = block_size
        self._hash: Callable[[Any], bytes] = get_hash_fn_by_name(algorithm)

    def of_prompt(self, prompt: PlainPrompt, tokens: Sequence[int]) -> list[str]:
        """Hex, in order: one for each full block, then the tail's where `tokens` end within a block."""
        found: list[bytes] = []
        for start in range(0, len(tokens), self._block_size):
            found.append(self._key(prompt, found[-1] if found else None, tokens, start))
        return [key.hex() for key in found]

    def of_request(self, request: Hashed, hashes: Sequence[bytes], tokens: Sequence[int]) -> list[str]:
        """The same for a request whose full blocks the engine has hashed; `hashes` must reach to the tail."""
        full = len(tokens) // self._block_size
        keys = [key.hex() for key in hashes[:full]]
        return keys + ([self.tail(request, hashes, tokens)] if len(tokens) % self._block_size else [])

    def tail(self, request: Hashed, hashes: Sequence[bytes], tokens: Sequence[int]) -> str:
        """The key of the partial block that `tokens` end with; its parent is the block before, or none."""
        start = len(tokens) // self._block_size * self._block_size
        parent = hashes[start // self._block_size - 1] if start else None
        return self._key(request, parent, tokens, start).hex()

    def _key(self, request: Hashed, parent: bytes | None, tokens: Sequence[int], start: int) -> bytes:
        end = min(start + self._block_size, len(tokens))
        extra, _ = kv_cache_utils.generate_block_hash_extra_keys(request, start, end, 0)
        return bytes(kv_cache_utils.hash_block_tokens(self._hash, parent, tokens[start:end], extra))


def check_seed(seed: str | None, algorithm: str) -> None:
    """Raises InvalidInput unless hashes are the same in every process."""
    if algorithm != HASH_ALGORITHM:
        raise InvalidInput(f"blocks are hashed with {algorithm}; samplers that share them need {HASH_ALGORITHM}")
    if not seed or seed != kv_cache_utils.resolve_none_hash_seed(get_hash_fn_by_name(algorithm)):
        raise InvalidInput("kv_hash_seed is not what the engine begins its hashes with; give every sampler the same")
