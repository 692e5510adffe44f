"""Prints the keys of some prompts, derived by the engine's functions in a process of its own."""

from __future__ import annotations

import json
import sys

from services.common.errors import InvalidInput
from services.sampler.kv_connector.keys import BlockKeys, PlainPrompt
from services.sampler.kv_connector.scope import HASH_ALGORITHM

BLOCK = 16
LENGTHS = (1, 15, 16, 17, 33, 50)
CASES = {"plain": (None, None), "salted": (None, "tenant-a"), "adapter": (("p@1@d", 5, "runs/p"), "tenant-a")}


def main() -> None:
    from vllm.lora.request import LoRARequest
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core import kv_cache_utils

    kv_cache_utils.init_none_hash(get_hash_fn_by_name(HASH_ALGORITHM))
    try:
        keys = BlockKeys(BLOCK, sys.argv[1])
    except InvalidInput as error:
        print(json.dumps({"refused": error.message}))
        return
    found = {}
    for name, (lora, salt) in CASES.items():
        prompt = PlainPrompt(LoRARequest(*lora) if lora else None, salt)
        found[name] = {length: keys.of_prompt(prompt, list(range(3, 3 + length))) for length in LENGTHS}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
