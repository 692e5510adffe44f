"""KV blocks are zeroed when they are given to a request.

Attention multiplies the unused rest of a block by zero, and zero times NaN is NaN: without
this an adapter that produced NaN would spoil the requests that get its blocks next,
whoever they belong to.
"""

from __future__ import annotations

from vllm.v1.kv_cache_interface import KVCacheConfig


def enable() -> None:
    """Called before the engine is built. vLLM has the zeroing, and uses it for other models."""
    KVCacheConfig.needs_kv_cache_zeroing = property(lambda self: True)
