"""Environment of vLLM: set before its first import, and never inherited by accident."""

from __future__ import annotations

import os

_FIXED = {
    # One process: on a CPU vLLM's separate engine and worker processes cost two more imports
    # of torch (start 23 s instead of 9 s, 1.9 GB instead of 0.9 GB) and gain nothing.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # torch.compile would build one C++ kernel that counts token ranks (15 s, and a compiler).
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # A compute thread that waits must not spin while another process needs its core.
    "OMP_WAIT_POLICY": "passive",
    "GOMP_SPINCOUNT": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_HOST_IP": "127.0.0.1",
    # One position more than the context, for the token that scoring a full context generates.
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
    "VLLM_CONFIGURE_LOGGING": "0",
}
_REMOVED = ("VLLM_CPU_KVCACHE_SPACE", "VLLM_PLUGINS_DIR", "VLLM_LORA_RESOLVER_CACHE_DIR")


def prepare(threads: int, hash_seed: str = "") -> None:
    """`threads` compute threads; 0 = torch's choice. `hash_seed` of cache blocks; "" = nobody shares them."""
    os.environ.update(_FIXED)
    os.environ["VLLM_PLUGINS"] = ""
    for name in _REMOVED:
        os.environ.pop(name, None)
    if hash_seed:
        os.environ["PYTHONHASHSEED"] = hash_seed  # where the engine looks for it
    if threads:
        os.environ["OMP_NUM_THREADS"] = str(threads)
