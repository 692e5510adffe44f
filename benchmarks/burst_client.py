"""An unmodified Tinker SDK that asks for many samples at once: run as a script, in a process of its own.

    python -m benchmarks.burst_client --base-model NAME --count 2048 --max-tokens 8 --report FILE

The mesh is found by TINKER_BASE_URL and TINKER_API_KEY. The report holds, for each sample, its
sequence id, how many tokens it has and when its result was there (Unix seconds).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import time
from pathlib import Path
from typing import Any

import tinker
from tinker import types

PROMPT_TOKENS, GROUPS = 256, 128


async def burst(base_model: str, count: int, max_tokens: int) -> dict[str, Any]:
    service = tinker.ServiceClient()
    sampler = await service.create_sampling_client(base_model=base_model)
    parameters = [types.SamplingParams(max_tokens=max_tokens, temperature=1.0, seed=n) for n in range(count)]
    groups = [types.ModelInput.from_ints([2 + (n * k) % 500 for k in range(PROMPT_TOKENS)]) for n in range(GROUPS)]

    async def one(n: int) -> tuple[str, int, float]:
        made = await sampler.sample(groups[n % GROUPS], 1, parameters[n])
        return made.sequences[0].sequence_id, len(made.sequences[0].tokens), time.time()

    began = time.time()
    samples = await asyncio.gather(*(one(n) for n in range(count)))
    seconds = time.time() - began
    await service.close("success")
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": seconds, "samples": samples, "rss_mib": rss, "sdk": tinker.__version__}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-model", required=True)
    parser.add_argument("--count", type=int, default=2048)
    parser.add_argument("--max-tokens", type=int, default=8)
    parser.add_argument("--report", type=Path, required=True)
    arguments = parser.parse_args()
    report = asyncio.run(burst(arguments.base_model, arguments.count, arguments.max_tokens))
    arguments.report.write_text(json.dumps(report))


if __name__ == "__main__":
    main()
